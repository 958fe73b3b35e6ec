"""Compares our images per second with tf.data's, Pillow's and OpenCV's."""

from dpn.scripts import main

if __name__ == "__main__":
  main.benchmark("input")

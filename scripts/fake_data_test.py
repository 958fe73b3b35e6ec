"""Shapes of made-up data against what the preprocessing says."""

import ml_collections
import numpy as np
import pytest

from dpn.scripts import fake_data


def test_a_mixture_is_opened():
  config, digits = ml_collections.ConfigDict(), {"name": "arrays:digits"}
  part = {"data": digits | {"split": "train"}, "pp": 'keep("label")'}
  weights = {"data": {"a": 1, "b": 2}}
  config.input = {"batch_size": 6, "a": part, "b": part, **weights}
  assert fake_data.spec(config)["label"][0] == (6,)
  part |= {"data": {"name": "folder:/gone"}, "pp": 'decode|keep("image")'}
  config.input.update(a=part, b=part)
  assert fake_data.spec(config)["image"][0] == (6, 64, 64, 3)


@pytest.mark.parametrize("key", ["label", "annotation", "mask"])
def test_label_maps(key):
  config = ml_collections.ConfigDict()
  config.input = {"batch_size": 6}
  config.input.pp = (
    f'decode|decode_labels(3, inkey="{key}", reduce_zero_label=True)|'
    "random_resize_with_mask((80, 40))|random_crop_with_mask(32, cat_max=0.75)"
    '|pad_to_shape((96, 96, 3))|pad_to_shape((96, 96), 255, key="labels")|'
    'value_range(-1, 1)|keep("image", "labels")'
  )
  assert fake_data.spec(config) == {
    "image": ((6, 96, 96, 3), np.float32),
    "labels": ((6, 96, 96), np.uint8),
  }

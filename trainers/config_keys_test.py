"""Keys that configs may have; wrong ones are also tested in train_test."""

import pytest

from trainers import config_keys


def test_keys_without_a_meaning_are_noted():
  config = {
    "pp_modules": ["ops_general"],
    "input": {"cache_raw": True, "shuffle_buffer_size": 250_000},
  }
  assert config_keys.check(config) == [
    "config.pp_modules is accepted and ignored: all preprocessing ops are "
    "always known.",
    "config.input.shuffle_buffer_size is accepted and ignored: every epoch is "
    "shuffled as a whole.",
    "config.input.cache_raw is accepted and ignored: records are read from "
    "disk as needed.",
  ]
  assert config_keys.check({"input": {"batch_size": 8}, "mixup": None}) == []


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ({"modle": 1}, "Unknown key in config: 'modle'. Did you mean 'model'"),
    ({"input": {}}, r"config\.input is missing"),
    ({"lr": "0.1"}, r"config\.lr must be a number, got '0\.1'"),
    ({"mixup": {"pp": 0.1}}, r"in config\.mixup: 'pp'. Did you mean 'p'"),
    (
      {"model_load": {"x": 1}},
      r"model_load: 'x'. Known: dont_check, dont_load",
    ),
  ],
)
def test_wrong_configs(config, message):
  with pytest.raises(ValueError, match=message):
    config_keys.check({"input": {"batch_size": 8}, **config})

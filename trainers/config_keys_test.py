"""Keys that configs may have, and what is said about the others."""

import pytest

from trainers import config_keys


def test_keys_without_a_meaning_are_noted():
  config = {
    "pp_modules": ["ops_general"],
    "sharding_rules": [("act_batch", "data")],
    "input": {"cache_raw": True, "shuffle_buffer_size": 250_000},
  }
  assert config_keys.check(config) == [
    "config.sharding_rules is accepted and ignored: activations are split over "
    "the batch, on all axes.",
    "config.input.shuffle_buffer_size is accepted and ignored: every epoch is "
    "shuffled as a whole.",
    "config.input.cache_raw is accepted and ignored: records are read from "
    "disk as needed.",
  ]
  assert config_keys.check({"input": {"batch_size": 8}, "mixup": None}) == []
  load = {"dont_load": ["head/.*"], "dont_check": ["gelu"]}
  assert config_keys.check({"input": {"a": 1}, "model_load": load}) == []


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ({"modle": 1}, "Unknown key in config: 'modle'. Did you mean 'model'"),
    ({"task": "classify"}, "Unknown task 'classify'"),
    ({"input": {}}, r"config\.input is missing"),
    ({"lr": "0.1"}, r"config\.lr must be a number, got '0\.1'"),
    (
      {"model_load": {"dontload": []}},
      r"in config\.model_load: 'dontload'. Did you mean 'dont_load'. Known: "
      "dont_check, dont_load",
    ),
  ],
)
def test_wrong_configs(config, message):
  with pytest.raises(ValueError, match=message):
    config_keys.check({"input": {"batch_size": 8}, **config})

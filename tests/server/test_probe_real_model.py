"""The smallest bundled model is probed by itself: it scores choices, favours no position, and may not write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from clag.v1 import admin_service_pb2 as pb

from clag_server.models.specs import KNOWN_MODELS
from clag_server.models.store import ModelStore
from tests.support.process import ServerProcess

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_smallest_model_scores_choices_without_bias_and_does_not_write(tmp_path: Path) -> None:
    cache = Path(os.environ.get("CLAG_CACHE", "~/.cache/clag")).expanduser()
    for spec in KNOWN_MODELS:
        ModelStore(cache).pull(spec)
    settings = {"models.backend": "local", "models.cache_dir": str(cache), "organize.probe_auto": "true"}
    with ServerProcess(tmp_path, settings) as server:
        admin = server.start().connect().admin
        (probe,) = admin.ListOperations(pb.ListOperationsRequest(), timeout=60).operations
        watched = admin.WatchOperation(pb.WatchOperationRequest(operation_id=probe.operation_id), timeout=1100)
        end = list(watched)[-1].operation
        assert end.state == pb.OPERATION_STATE_SUCCEEDED
        routing, selection, annotation, evolution = end.probe.skills
        for choice in (routing, selection):
            assert choice.valid_rate == 1
            assert choice.position_bias < 0.3
            assert 0.2 < choice.accuracy < choice.accuracy_high
        # It repeats the note where it should say what it is about, and links whatever stands near.
        assert annotation.weight == evolution.weight == 0
        assert annotation.accuracy < 0.5
        assert evolution.accuracy < 0.5

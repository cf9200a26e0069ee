# SPDX-License-Identifier: Apache-2.0
"""One answer combined from those of several brokers: what counts as done, and what a partial failure says."""

from __future__ import annotations

import pytest
from meridian_broker.admin.elsewhere.parts import Part, Said, done_by
from meridian_broker.admin.http.requests import Refused
from meridian_broker.wire.pulsar.topic_name import parse


def said(*statuses: int) -> list[Said]:
    return [
        Said(Part(parse(f"t-partition-{number}"), "POST", "/"), status, {"reason": f"reason {status}"})
        for number, status in enumerate(statuses)
    ]


def refusal(*statuses: int) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        done_by(said(*statuses))
    return refused.value.status, str(refused.value)


def test_parts_with_nothing_to_do_are_ignored_if_others_did_theirs() -> None:
    assert done_by([]) == []
    assert [one.status for one in done_by(said(204, 404, 200, 409))] == [204, 200]


def test_what_all_parts_refuse_is_refused_with_the_same_answer() -> None:
    assert refusal(404, 404) == (404, "reason 404")
    assert refusal(412) == (412, "reason 412")


def test_a_partial_failure_names_what_was_not_done_and_why() -> None:
    status, text = refusal(204, 503, 404)
    assert status == 503
    assert "done for 1 of 3" in text
    assert "persistent://public/default/t-partition-1: 503, reason 503" in text
    assert "t-partition-2" not in text
    assert refusal(404, 503)[0] == 503


def test_a_request_that_must_not_be_repeated_unchanged_says_so() -> None:
    with pytest.raises(Refused, match=r"not for all: .*; look at the backlogs$"):
        done_by(said(204, 503), "look at the backlogs")
    assert refusal(204, 503)[1].endswith("; repeat the request")

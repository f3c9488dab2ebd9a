"""Ready-made verifiers, as plain data; the columns are those of the data sets named beside them."""

from __future__ import annotations

from typing import Any

_THOUGHT = {
    "kind": "format",
    "begins": "<think>",
    "contains": ["</think>", "<answer>"],
    "ends": "</answer>",
}

PRESETS: dict[str, dict[str, Any]] = {
    # Jiayi-Pan/Countdown-Tasks-3to4, whose format and its tenth are TinyZero's
    "countdown": {
        "kind": "sum",
        "terms": [
            {"weight": 0.1, "verifier": _THOUGHT},
            {
                "weight": 0.9,
                "verifier": {
                    "kind": "extract",
                    "begin": "<answer>",
                    "end": "</answer>",
                    "then": {"kind": "countdown", "numbers": "nums", "target": "target"},
                },
            },
        ],
    },
    # openai/gsm8k, whose own answers end in "#### 72": the last number of the column is the right one
    "gsm8k": {
        "kind": "sum",
        "terms": [
            {"weight": 0.1, "verifier": {"kind": "format", "contains": ["####"]}},
            {
                "weight": 0.9,
                "verifier": {
                    "kind": "extract",
                    "begin": "####",
                    "then": {"kind": "numeric", "column": "answer", "which": "first"},
                },
            },
        ],
    },
    # rows with an object as JSON in the column `json`; members count alike
    "json": {
        "kind": "sum",
        "terms": [
            {"weight": 0.1, "verifier": {"kind": "json", "satisfies": {"type": "object"}}},
            {"weight": 0.9, "verifier": {"kind": "json", "column": "json"}},
        ],
    },
    # prompts such as "12+7="
    "sums": {"kind": "exact", "column": "answer"},
}

"""What a reader of the measures must not miss, in sentences; and the gates of CI. Pure.

A finding is not a verdict: it fires where the numbers leave chance little room (a 95 % interval for shares, p below
0.01 for drift, which is looked for in two ways) and the effect is large enough to matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scorer.bench.document import clip, decimals, percent

__all__ = ["failures", "findings", "gates"]

#: Questions that another order may move before it is a finding: a share that the interval must lie above.
_ORDER_MOVES = 0.05
_DRIFT_P = 0.01
#: Change between the halves of a run below which a drift is not worth a sentence, however sure (accuracy or
#: probability).
_DRIFT_SIZE = 0.02


def failures(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Answers that were asked for and did not come, counted by reason: the manifest's ``failed``."""
    return {str(reason): int(count) for reason, count in (manifest.get("failed") or {}).items() if count}


def findings(
    metrics: Mapping[str, Any], failed: Mapping[str, int], manifest: Mapping[str, Any] | None = None
) -> list[str]:
    """The sentences, the gravest first; empty where nothing is out of the ordinary."""
    status = (manifest or {}).get("status", "finished")
    unfinished = [f"Unfinished: the run's status is {clip(str(status))}; rows are missing."]
    return [
        *(unfinished if status != "finished" else []),
        *_lost(metrics, failed),
        *_contradictions(metrics),
        *_confidence(metrics),
        *_order(metrics),
        *_changes(metrics),
    ]


def _lost(metrics: Mapping[str, Any], failed: Mapping[str, int]) -> list[str]:
    out = []
    if count := sum(failed.values()):
        out.append(
            f"Failed: {count} answer{'s' * (count > 1)} did not come and are in no measure below, so the engine may "
            "look better than it is."
        )
    if metrics["unlabelled"]:
        out.append(
            f"Unlabelled: {metrics['unlabelled']} of {metrics['questions']} questions have no expected answer and are "
            "left out of accuracy."
        )
    if not metrics["labelled"]:
        out.append("No labelled answer: accuracy and calibration were not measured.")
    return out


def _contradictions(metrics: Mapping[str, Any]) -> list[str]:
    out, checks = [], metrics["checks"]
    if checks["decision_not_largest"]:
        out.append(
            f"Contradiction: {checks['decision_not_largest']} of {metrics['records']} decisions are not the most "
            "probable option."
        )
    if checks["sum_off"]:
        out.append(
            f"Contradiction: the probabilities of {checks['sum_off']} of {metrics['records']} answers do not sum to "
            f"1; the worst is off by {decimals(checks['largest_sum_gap'])}."
        )
    if metrics["nll_clipped"]:
        out.append(
            f"Certain and wrong: the expected option has probability 0 in {metrics['nll_clipped']} of {metrics['n']} "
            "answers; NLL is a lower bound."
        )
    return out


def _confidence(metrics: Mapping[str, Any]) -> list[str]:
    if not metrics["n"]:
        return []
    sure, right = metrics["mean_confidence"], metrics["accuracy"]
    word = "Overconfident" if sure > metrics["high"] else "Underconfident" if sure < metrics["low"] else ""
    return [
        f"{word}: the mean largest probability is {percent(sure)}, and {percent(right)} of the answers are right "
        f"(95 % interval {percent(metrics['low'])} to {percent(metrics['high'])})."
    ] * bool(word)


def _order(metrics: Mapping[str, Any]) -> list[str]:
    order = metrics["order"]
    moved = order["all"]
    if moved["low"] is None or moved["low"] <= _ORDER_MOVES:
        return []
    return [
        f"Position: another order of the options moved the decision of {moved['questions_moved']} of "
        f"{moved['questions']} questions. Of the decisions {percent(order['first'])} were for the option asked first "
        f"and {percent(order['last'])} for the one asked last; without any preference it would be "
        f"{percent(order['by_chance'])}."
    ]


def _changes(metrics: Mapping[str, Any]) -> list[str]:
    out, drift, repeats = [], metrics["drift"], metrics["repeats"]
    for name, key, p in (
        ("accuracy", "accuracy", drift["p_accuracy"]),
        ("mean largest probability", "mean_confidence", drift["p_confidence"]),
    ):
        if p is not None and p < _DRIFT_P and abs(drift[key][1] - drift[key][0]) >= _DRIFT_SIZE:
            first, second = drift[key]
            out.append(
                f"Drift: from the first half of the run to the second the {name} went from {percent(first)} to "
                f"{percent(second)} (p = {p:.2g}). Rows sorted by difficulty look the same."
            )
    if repeats["differ"]:
        out.append(
            f"Not repeatable: {repeats['differ']} of {repeats['groups']} prompts that were asked more than once got "
            f"different numbers; the largest difference is {repeats['largest']:.3g}."
        )
    return out


def gates(
    metrics: Mapping[str, Any], *, min_accuracy: float | None, max_ece: float | None, max_flips: float | None
) -> list[str]:
    """What fails, in words; empty when every gate holds. None is no gate.

    ``min_accuracy`` is compared with the accuracy, ``max_ece`` with the ECE of 10 bins, ``max_flips`` with the share of
    answers to reordered options whose decision moved (all 0..1). A gate that holds exactly is kept; one whose measure
    does not exist fails, since nothing was shown.
    """
    flips = metrics["order"]["all"]["share"]
    out = []
    if min_accuracy is not None:
        if metrics["accuracy"] is None:
            out.append("min-accuracy cannot be checked: no labelled answer")
        elif metrics["accuracy"] < min_accuracy:
            out.append(f"accuracy {decimals(metrics['accuracy'])} is below {min_accuracy:g}")
    if max_ece is not None:
        if metrics["ece_10"] is None:
            out.append("max-ece cannot be checked: no labelled answer")
        elif metrics["ece_10"] > max_ece:
            out.append(f"ECE {decimals(metrics['ece_10'])} (10 bins) is above {max_ece:g}")
    if max_flips is not None:
        if flips is None:
            out.append("max-flips cannot be checked: no question was asked in another order of its options")
        elif flips > max_flips:
            out.append(f"reordering the options moved {decimals(flips)} of the answers, above {max_flips:g}")
    return out

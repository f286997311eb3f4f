"""Answers from a server of System One's or semif's shape, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from scorer.bench.client import Client, Reply, Unreachable
from scorer.bench.source import Answer, Calls, Failure, SourceBroken
from scorer.engines.base import Question, canonical_hashes
from shared import jsonio

__all__ = ["UrlSource", "surface_of"]

#: Questions of one call where a server does not tell (contract § Endpoints).
_QUESTIONS = 16


def surface_of(url: str) -> str:
    """``decide`` for a URL that ends with semif's path, else ``systemone``."""
    return "decide" if url.rstrip("/").endswith(("/decide", "/decide/shared")) else "systemone"


class UrlSource:
    """A server: ``url`` is its origin, or ends with ``/v1/systemone``, ``/decide`` or ``/decide/shared``. Several
    threads may ask at once. Raises ValueError for a bad URL."""

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self._surface = surface_of(url)
        ending = ("/decide/shared", "/decide") if self._surface == "decide" else ("/v1/systemone",)
        self._base = client.path
        for end in ending:
            self._base = self._base.removesuffix(end)
        self._url = url
        self._health: dict[str, Any] = {}
        self._model: str | None = None
        self._lock = threading.Lock()
        self.seconds = 0.0

    def load(self) -> None:
        """Ask ``GET /health`` what is served; a server without one is asked all the same."""
        try:
            reply = self._client.request("GET", f"{self._base}/health", token=False)
        except Unreachable as error:
            raise SourceBroken(f"no answer from {error}") from None
        if reply.status == 200 and isinstance(reply.body, dict):
            self._health = reply.body
        elif reply.status == 503:
            raise SourceBroken("the server says that it is not ready (503)")

    @property
    def pins(self) -> dict[str, Any]:
        """The address, the surface, and what /health says of the model."""
        names = ("engine", "served_model", "model", "device", "max_tokens", "max_questions_per_call")
        told = {name: self._health[name] for name in names if name in self._health}
        profile = self._health.get("systemone")
        if isinstance(profile, dict) and self._surface == "systemone":
            told["profile"] = profile.get("profile")
        return {"url": self._url, "surface": self._surface, **told}

    @property
    def per_call(self) -> int:
        """What /health says, else 16."""
        told = self._health.get("max_questions_per_call")
        return told if type(told) is int and told > 0 else _QUESTIONS

    def ask(self, state: Any, calls: Calls) -> Iterator[Answer | Failure]:
        """As :meth:`Source.ask`; one request a call, one after the other."""
        for questions in calls:
            try:
                yield self._one(state, questions)
            except Unreachable as error:
                raise SourceBroken(f"no answer from {error}") from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _one(self, state: Any, questions: Mapping[str, Question]) -> Answer | Failure:
        single = len(questions) == 1
        if self._surface == "systemone":
            path, body = "/v1/systemone", {"model": "jev-latest", "state": state, "questions": questions}
        else:
            decisions = [_decision(name, question) for name, question in questions.items()]
            path = "/decide" if single else "/decide/shared"
            body = {"state": state, **decisions[0]} if single else {"state": state, "decisions": decisions}
        reply = self._client.request("POST", self._base + path, body)
        with self._lock:
            self.seconds += reply.seconds
        if reply.status in (401, 403):
            raise SourceBroken(f"the server does not take the token ({reply.status})")
        if reply.status != 200:
            return Failure(f"http_{reply.status}", reply.code or "the server did not answer 200")
        try:
            read = self._systemone if self._surface == "systemone" else self._decide
            answers, tokens, prompt, inference_ms = read(reply, questions)
        except (KeyError, TypeError, ValueError, AttributeError):
            return Failure("broken_answer", "the response has not the shape of its surface")
        total = round(1000 * reply.seconds, 4)
        # A server that tells no time of its own is given the round trip, one without a hash that of the call's JSON.
        return Answer(
            answers,
            tokens,
            canonical_hashes(state, [questions])[0] if prompt is None else prompt,
            total if inference_ms is None else inference_ms,
            total,
        )

    def _systemone(self, reply: Reply, _: Mapping[str, Question]) -> tuple[Any, int, str | None, float | None]:
        body = reply.body
        self._check_model(body.get("model"))
        timing = body.get("timing") or body.get("x_timing") or {}
        told = timing.get("inference_ms")
        tokens = (body.get("usage") or {}).get("input_tokens")
        return dict(body["answers"]), int(tokens or 0), None, None if told is None else float(told)

    def _decide(self, reply: Reply, questions: Mapping[str, Question]) -> tuple[Any, int, str | None, float | None]:
        body = reply.body
        results = [body] if len(questions) == 1 else body["results"]
        self._check_model(results[0].get("model"))
        seconds = body.get("forward_seconds")
        if seconds is None:
            seconds = (body.get("timing") or {}).get("inference_seconds")
        prompt = results[0].get("prompt_sha256")
        answers = {result["id"]: _native(result) for result in results}
        return (
            answers,
            int(results[0].get("input_tokens") or 0),
            prompt if isinstance(prompt, str) else None,
            None if seconds is None else round(1000 * float(seconds), 4),
        )

    def _check_model(self, model: Any) -> None:
        """A server that begins to name another model has been replaced under the run."""
        name = model if isinstance(model, str) else jsonio.dumps(model).decode()
        with self._lock:
            if self._model is None:
                self._model = name
            same = self._model == name
        if not same:
            raise SourceBroken("the server names another model than before: it was replaced during the run")


def _decision(name: str, question: Question) -> dict[str, Any]:
    options = [{"id": label, "description": text} for label, text in question["criteria"].items()]
    return {"id": name, "question": question["instructions"], "options": options}


def _native(result: Mapping[str, Any]) -> Any:
    """A semif result as an answer object; the engine's own where the server passes it on."""
    if isinstance(result.get("native"), Mapping):
        return result["native"]
    by_option = dict(zip(result["option_ids"], result["probabilities"], strict=True))
    # semif: the first maximum in the order asked (wire/semif.md §2a).
    return {
        "type": "choice",
        "probabilities": by_option,
        "choice": max(by_option, key=lambda option: by_option[option]),
    }

"""`d2v doctor`: check that a model is read correctly."""

from __future__ import annotations

from typing import Annotated

import typer

from decoder2vec.cli.options import AttentionOption, Device, Dtype, Model
from decoder2vec.cli.output import info, table


def doctor(
    model: Model,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare a saved encoder with another engine instead: http://host/v1#model (OpenAI's API, llama.cpp, "
            "vLLM), http://host/embed (TEI), or a folder of sentence-transformers or ONNX."
        ),
    ] = None,
) -> None:
    """Check on your own model that it is read correctly; exit code 1 if a check fails."""
    if against is not None:
        _compare(model, against, device, dtype)
        return
    from decoder2vec.analysis.doctor import doctor as run_doctor

    checks = run_doctor(model, attention=attention, device=device, dtype=dtype, notify=info)
    table(
        ("check", "", "measured"),
        [(check.name, "ok" if check.passed else "FAILED", check.detail) for check in checks],
    )
    failed = [check.name for check in checks if not check.passed]
    if failed:
        info(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
        raise typer.Exit(1)
    typer.echo(f"All {len(checks)} checks passed.")


def _compare(encoder: str, engine: str, device: str | None, dtype: str | None) -> None:
    """Print how the vectors of another engine differ; exit code 1 if they do."""
    from decoder2vec.analysis.engines import compare_engines

    comparison = compare_engines(encoder, engine, device=device, dtype=dtype)
    rows = [
        (
            repr(row.text)[1:-1][:40] or "(empty)",
            "" if row.cosine is None else f"{row.cosine:.6f}",
            "no vector" if row.difference is None else f"{row.difference:.1e}",
        )
        for row in comparison.texts
    ]
    table(("text", "cosine", "difference"), rows)
    typer.echo(comparison.diagnosis)
    if not comparison.agrees:
        raise typer.Exit(1)

"""The four documents: kept byte for byte, computed evidence, and wrong ones recognized."""

import io
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from decoderspec.golden import documents
from decoderspec.golden.block_evidence import block_evidence
from decoderspec.golden.command import DIFFERS, SAME, UNUSABLE, run
from decoderspec.golden.compare import compare
from decoderspec.golden.documents import DOCUMENTS, document, kept
from decoderspec.golden.mistakes import MISTAKES
from decoderspec.golden.model_evidence import model_evidence
from decoderspec.golden.parsing import NUMBER
from decoderspec.golden.text import clean_number
from decoderspec.reference.operations import OPERATIONS

LINES = {("report", "block"): 11, ("trace", "block"): 33, ("report", "model"): 13, ("trace", "model"): 28}


def guesses(kind, subject, text):
    return {guess for difference in compare(kind, subject, text) for guess in difference.looks_like}


# --- The documents themselves ---


@pytest.mark.parametrize(("kind", "subject"), DOCUMENTS)
def test_kept_documents_are_those_of_a_fresh_run(kind, subject):
    fresh = document(kind, subject)
    assert kept(kind, subject) == fresh
    assert fresh.endswith("\n")
    assert fresh.count("\n") == len(fresh.splitlines()) == LINES[kind, subject]
    assert "-0.000000" not in fresh


def test_documents_are_the_same_in_another_locale_with_other_threads_and_hash_seed():
    code = "from decoderspec.golden.documents import *; print(*(document(*d) for d in DOCUMENTS), sep='', end='')"
    environment = os.environ | {
        "LC_ALL": "de_DE.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "7",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == "".join(kept(*each) for each in DOCUMENTS).encode()


def test_no_printed_digit_is_near_a_tie():
    """A value at a tie could print either way; rounding moves these by parts in 1e15."""
    block, model = block_evidence(), model_evidence()
    arrays = [*block.stages.values(), block.weights, block.probe_logits, block.post_norm, *model.stages.values()]
    values = np.concatenate([np.ravel(each) for each in (*arrays, model.logits, block.recurrence, [model.loss])])
    values = values[np.abs(values) > 1e-9] * 1e6
    assert np.abs(values - np.floor(values) - 0.5).min() > 1e-6


@pytest.mark.parametrize(("value", "shown"), [(-4.9e-7, "0.000000"), (-5.1e-7, "-0.000001"), (-0.0, "0.000000")])
def test_tiny_values_print_as_zero(value, shown):
    assert clean_number(value) == shown


# --- Evidence is computed, not written down ---


def flipped(kind, subject, **operations):
    """Fields that a substituted run says are no longer true."""
    text = document(kind, subject, replace(OPERATIONS, **operations))
    return {each.field for each in compare(kind, subject, text) if each.actual in ("false", "mismatch")}


def broken_vjp(name, index):
    """The operation with one of its gradients scaled by 1.001."""
    operation = getattr(OPERATIONS, name)

    def vjp(*arguments):
        gradients = list(operation.vjp(*arguments))
        gradients[index] = gradients[index] * 1.001
        return tuple(gradients)

    return replace(operation, vjp=vjp)


def restless(operation):
    """The operation with another result at every call."""
    calls = iter(range(10**9))
    return replace(operation, perform=lambda stage, *inputs: operation(stage, *inputs) + next(calls) * 1e-9)


def test_a_missing_mask_is_seen_in_the_causality_of_both():
    scores = MISTAKES["no causal mask"].scores
    assert {"causality.prefix_0_bitwise", "causality.prefix_1_bitwise"} <= flipped("report", "model", scores=scores)
    assert "causality.future_probabilities_zero" in flipped("report", "block", scores=scores)


def test_a_wrong_derivative_is_seen_in_the_gradient_checks():
    assert flipped("report", "block", linear=broken_vjp("linear", 1)) == {"gradcheck.passed"}
    assert "gradcheck.passed" in flipped("report", "model", project=broken_vjp("project", 1))


def test_a_restless_operation_is_seen_in_the_replay():
    assert "replay.bitwise" in flipped("report", "model", silu=restless(OPERATIONS.silu))
    text = document("report", "block", replace(OPERATIONS, silu=restless(OPERATIONS.silu)))
    assert "replay=mismatch" in text


def test_an_inexact_merge_is_seen_in_the_trace():
    add = replace(OPERATIONS.add, perform=lambda stage, x, branch: (x + branch) * (1 + 1e-15))
    assert {"MERGE name=attention.exact", "MERGE name=feed-forward.exact"} <= flipped("trace", "block", add=add)


def test_an_untied_head_is_seen_in_the_tying():
    """A head that reads a copy made before the update does not follow the one table."""
    copies = {}

    def stale(stage, x, table):
        return OPERATIONS.project(stage, x, copies.setdefault("table", table.copy()))

    assert "tying.lookup_and_head" in flipped("report", "model", project=replace(OPERATIONS.project, perform=stale))


# --- Comparing ---


@pytest.mark.parametrize(("kind", "subject"), DOCUMENTS)
def test_the_right_document_has_no_differences(kind, subject):
    assert compare(kind, subject, kept(kind, subject)) == []


BLOCK_ONLY_SHOWS_FORWARD = {
    "no final norm",
    "log-probabilities instead of logits",
    "a summed loss instead of the mean",
    "targets shifted once more",
    "a loss in bits",
}
UNIT_ROWS_AND_IDENTITIES = {"no attention norm", "square matrices applied transposed (stored [out, in])"}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_recognized_in_the_models_trace(mistake):
    assert mistake in guesses("trace", "model", document("trace", "model", MISTAKES[mistake]))


@pytest.mark.parametrize("mistake", sorted(set(MISTAKES) - BLOCK_ONLY_SHOWS_FORWARD - UNIT_ROWS_AND_IDENTITIES))
def test_each_visible_mistake_is_recognized_in_the_blocks_trace(mistake):
    assert mistake in guesses("trace", "block", document("trace", "block", MISTAKES[mistake]))


ANOTHER_INITIALIZATION = "another initialization: these rows come straight from the generator"


@pytest.mark.parametrize(
    ("change", "field", "guess"),
    [
        (lambda t: t[:-1], "end", "a last line printed without its newline"),
        (lambda t: t + "\n", "end", "a newline printed twice"),
        (lambda t: t.replace("\n", "\r\n"), "line ends", "text written on Windows"),
        (lambda t: "\ufeff" + t, "encoding", None),
        (lambda t: t.replace("loss mean", "loss  mean"), "text", None),
        (lambda t: t.replace("\n", " \n"), "line ends", None),
        (
            lambda t: re.sub(NUMBER, lambda m: m[0].replace(".", ","), t),
            "loss.mean",
            "a decimal comma: the number format of a locale",
        ),
        (
            lambda t: t.replace("2.045535", "2.045534"),
            "loss.mean",
            "the last digit: single precision, or digits cut off instead of rounded",
        ),
        (lambda t: t.replace("2.045535", "2.0455"), "loss.mean", "another number of digits than six"),
        (
            lambda t: t.replace("[1,3,4]", "[1, 3, 4]"),
            "stage name=embedding token=0.shape",
            "blanks where there are none, or none where there are",
        ),
        (
            lambda t: t.replace(" scalars=264", " scalars=284"),
            "parameters.scalars",
            "an untied head: its table is counted as a second parameter",
        ),
        (
            lambda t: t.replace("0.682029,0.153556", "0.582029,0.153556"),
            "stage name=embedding token=0.values",
            ANOTHER_INITIALIZATION,
        ),
        (lambda t: t.replace("replay bitwise=true\n", ""), "replay", None),
        (lambda t: t.replace("loss mean", "mean_loss mean"), "mean_loss", None),
        (lambda t: "", "text", None),
    ],
)
def test_what_is_wrong_with_the_text_is_named(change, field, guess):
    found = {each.field: each.looks_like for each in compare("trace", "model", change(kept("trace", "model")))}
    assert field in found
    assert guess is None or guess in found[field]


def test_lines_in_another_order_are_named():
    lines = kept("trace", "model").splitlines(keepends=True)
    swapped = "".join([*lines[:4], lines[5], lines[4], *lines[6:]])
    assert [str(each) for each in compare("trace", "model", swapped)] == [
        "lines: expected in the order of the document, got in another order"
    ]


# --- The command ---


def ran(*arguments, given=b""):
    stdout, stderr = io.StringIO(), io.StringIO()
    status = run(list(arguments), io.BytesIO(given), stdout, stderr)
    return status, stdout.getvalue(), stderr.getvalue()


@pytest.mark.parametrize(("kind", "subject"), DOCUMENTS)
def test_command_prints_a_document_and_accepts_it_back(kind, subject):
    assert ran(kind, subject) == (SAME, kept(kind, subject), "")
    given = kept(kind, subject).encode()
    assert ran("compare", kind, subject, given=given) == (SAME, f"{kind} {subject}: no differences\n", "")


def test_command_reports_differences_of_bytes():
    status, output, _ = ran("compare", "report", "model", given=kept("report", "model").replace("\n", "\r\n").encode())
    assert status == DIFFERS
    assert output.endswith("report model: 1 difference\n")
    assert ran("compare", "report", "model", given=b"\xff\xfe")[0] == DIFFERS


@pytest.mark.parametrize(
    "arguments", [(), ("report",), ("report", "blocks"), ("compare", "report"), ("check", "x"), ("--help",)]
)
def test_command_says_what_came_and_what_is_allowed(arguments):
    status, output, complaint = ran(*arguments)
    assert (status, output) == (UNUSABLE, "")
    assert complaint.startswith(f"decoderspec golden: cannot use {' '.join(arguments) or 'no arguments'}\nusage:")


def test_check_fails_where_a_kept_document_is_stale_and_rewrite_mends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "FOLDER", tmp_path)
    documents.rewrite()
    assert documents.rewrite() == []
    assert ran("check")[0] == SAME
    (tmp_path / "block_report.txt").write_bytes(b"stale\n")
    status, output, _ = ran("check")
    assert (status, output.splitlines()[0]) == (DIFFERS, "report block: differs from a fresh run")
    assert ran("rewrite") == (SAME, "block_report.txt\n", "")
    assert ran("check")[0] == SAME

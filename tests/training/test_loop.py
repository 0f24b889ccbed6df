"""One step is what it says, and a run that goes wrong leaves nothing half-made."""

from __future__ import annotations

import math
import random
import signal

import pytest
import torch

from palimpsest import ConfigError, InputError, PalimpsestError, load
from palimpsest.text import load_tokenizer
from palimpsest.training import TrainingDivergedError, checkpoint_steps, model_folder, train
from palimpsest.training.batch import TrainBatch
from palimpsest.training.loop import Trainer
from palimpsest.training.prepare import load_data, pick_device, prepare_model


def make_trainer(recipe, tmp_path) -> Trainer:
    data = load_data(recipe)
    torch.manual_seed(recipe.train.seed)
    model, recipe = prepare_model(recipe, data, pick_device("cpu"))
    return Trainer(recipe, model, data, tmp_path)


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    trainer._accumulate_gradients()
    return {n: p.grad for n, p in trainer.model.named_parameters()}


class UnevenSource:
    """Rows whose numbers of targets differ, so that a mean of means would be wrong."""

    carries_state = False

    def batch_at(self, step: int) -> TrainBatch:
        inputs = torch.randint(0, 259, (6, 5), generator=torch.Generator().manual_seed(step))
        targets = inputs.roll(1, 1)
        targets[0, :] = -100
        targets[3, 1:] = -100
        return TrainBatch(inputs, targets, None)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_accumulation_equals_one_big_batch(pieces, make_recipe, tmp_path):
    steps = []
    for count in (1, pieces):
        trainer = make_trainer(make_recipe(train__grad_accumulation=count), tmp_path)
        object.__setattr__(trainer.data, "source", UnevenSource())
        batch = UnevenSource().batch_at(0)
        loss = float(trainer._accumulate_gradients()[0])
        expected = trainer.model(batch.inputs, targets=batch.targets).loss.item()
        assert loss == pytest.approx(expected, rel=1e-6)
        steps.append({n: p.grad for n, p in trainer.model.named_parameters()})
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-5, atol=1e-7)


def test_truncation_cuts_the_gradient_and_keeps_the_loss(make_recipe, tmp_path):
    whole = make_trainer(make_recipe(), tmp_path)
    cut = make_trainer(make_recipe(train__bptt=2), tmp_path)
    batch = whole.data.source.batch_at(0)
    loss = float(whole._accumulate_gradients()[0])
    assert float(cut._accumulate_gradients()[0]) == pytest.approx(loss, rel=1e-6)
    model, state, total = cut.model, None, 0.0
    model.zero_grad()
    got = {name: gradient.clone() for name, gradient in gradients(cut).items()}
    model.zero_grad()
    for segment in batch.segments(2):
        out = model(segment.inputs, state, targets=segment.targets)
        total = total + out.loss_sum
        state = out.state.detach()
    (total / batch.n_targets).backward()
    torch.testing.assert_close(got, {n: p.grad for n, p in model.named_parameters()})
    whole.model.zero_grad()
    whole_gradients = gradients(whole).values()
    assert any(not torch.allclose(a, b) for a, b in zip(whole_gradients, got.values(), strict=True))


def test_stream_carries_the_state_and_resets_at_documents(make_recipe, tmp_path):
    """Two steps of 5 tokens from carried states = one pass over 10 tokens with the same resets."""
    trainer = make_trainer(make_recipe(data__order="stream", optimizer__lr=1e-12), tmp_path)
    source, model = trainer.data.source, trainer.model
    first, second = source.batch_at(0), source.batch_at(1)
    trainer.train_step()
    carried = trainer._states[0]
    assert carried is not None
    loss = trainer.train_step().loss
    joined = TrainBatch(*(torch.cat(pair, 1) for pair in zip(first, second, strict=True)))
    out = model(joined.inputs, targets=joined.targets, reset_mask=joined.reset)
    assert loss == pytest.approx(float(out.token_losses[:, 5:].mean()), rel=1e-5)
    assert all(not t.requires_grad for _, t in carried.named_tensors())


def test_current_reading_predicts_each_token_before_it_is_seen(make_recipe, tmp_path):
    trainer = make_trainer(make_recipe(train__predict="current"), tmp_path)
    batch = trainer.data.source.batch_at(0)
    assert torch.equal(batch.inputs, batch.targets)
    expected = trainer.model(batch.inputs, targets=batch.inputs, predict="current").loss.item()
    assert trainer.train_step().loss == pytest.approx(expected, rel=1e-6)


def test_training_learns_and_leaves_a_usable_folder(make_recipe, tmp_path):
    recipe = make_recipe(train__steps=22, train__keep_checkpoints=2, optimizer__lr=3e-2)
    result = train(recipe, tmp_path / "run", progress=False)
    losses = [row["loss"] for row in result.metrics if row["kind"] == "train"]
    assert losses[0] == pytest.approx(math.log(259), abs=0.3) and losses[-1] < losses[0] - 1.0
    assert checkpoint_steps(result.folder) == [20, 22]
    folder = model_folder(result.folder)
    ids = torch.tensor([load_tokenizer(folder).encode("a page")])
    assert torch.equal(load(folder)(ids).logits, result.model(ids).logits)
    assert not result.model.training
    row = result.validation
    assert row["bits_per_byte"] == pytest.approx(row["loss"] / math.log(2), rel=0.2)


def test_validation_bits_per_byte_is_the_sum_over_the_bytes_read(make_recipe, tmp_path):
    trainer = make_trainer(make_recipe(), tmp_path)
    validation = trainer.data.validation
    corpus, count = validation._corpus, validation.windows * 5
    assert validation.num_bytes == sum(int(t) < 256 for t in corpus.tokens[1 : count + 1])
    with torch.no_grad():
        row = validation.measure(trainer.model, trainer.autocast)
    nats = row["loss"] * count
    assert row["bits_per_byte"] == pytest.approx(nats / math.log(2) / validation.num_bytes)


def test_the_callers_generators_and_handlers_stay(make_recipe, tmp_path):
    torch.manual_seed(11)
    before = torch.get_rng_state(), random.getstate(), signal.getsignal(signal.SIGINT)
    train(make_recipe(train__steps=2), tmp_path / "run", progress=False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), signal.getsignal(signal.SIGINT)) == before[1:]


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_stops_the_run(where, make_recipe, tmp_path, monkeypatch):
    plain = Trainer._accumulate_gradients

    def broken(self: Trainer):
        loss, states = plain(self)
        if self.step == 7 and where == "loss":
            loss = loss * math.nan
        elif self.step == 7:
            self._parameters[0].grad.fill_(math.inf)
        return loss, states

    monkeypatch.setattr(Trainer, "_accumulate_gradients", broken)
    recipe = make_recipe(optimizer__clip_norm=0.0)
    with pytest.raises(TrainingDivergedError) as caught:
        train(recipe, tmp_path / "run", progress=False)
    message = str(caught.value)
    assert message.startswith("step 8: the loss is ")
    assert "step-00000005" in message and "optimizer.lr=0.01" in message and "clip" in message
    assert "\n" not in message
    assert checkpoint_steps(tmp_path / "run") == [5]
    kept = load(model_folder(tmp_path / "run"))
    assert all(bool(torch.isfinite(p).all()) for p in kept.parameters())
    rows = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in rows and "Infinity" not in rows


def test_a_folder_that_exists_is_refused(make_recipe, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match=r"exists already; .*--resume"):
        train(make_recipe(), tmp_path / "run", progress=False)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__d_stat": 3}, "no such field; did you mean 'd_state'"),
        ({"model__name": "gpnn"}, "did you mean"),
        ({"model__vocab_size": 200}, r"model\.vocab_size=200: the data has 259 ids"),
        ({"data__train": ["missing.txt"]}, "missing.txt: no such file"),
        ({"data__train": []}, "name text files"),
        ({"data__tokenizer": "missing.json"}, "missing.json: no such tokenizer"),
        ({"data__tokenizer": ""}, r"data\.tokenizer is not set"),
        ({"data__seq_len": 5000}, "seq_len=5000"),
        ({"data__order": "stream", "train__batch_size": 600}, "one row each"),
        ({"train__device": "cuda:77"}, "is not there"),
        ({"train__device": "toaster"}, "is not there"),
        ({"data__task": "recall", "data__task_fields": {"pair": 2}}, "did you mean 'pairs'"),
        ({"data__task": "recall", "data__task_fields": {"length": 2}}, r"length is data\.seq_len"),
        ({"data__task": "recall", "data__task_fields": {"pairs": []}}, "at least one"),
        ({"data__task": "recall", "data__task_fields": {"pairs": [40]}}, "pairs=40"),
    ],
)
def test_a_mistake_leaves_no_folder(changes, message, make_recipe, tmp_path):
    with pytest.raises(PalimpsestError, match=message) as caught:
        train(make_recipe(**changes), tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_current_reading_is_refused_before_anything_is_written(make_recipe, tmp_path, monkeypatch):
    from palimpsest.models.gpn import GroundedModel
    from palimpsest.models.language_model import LanguageModel

    monkeypatch.setattr(GroundedModel, "state_features", LanguageModel.state_features)
    with pytest.raises(InputError, match="predict='current'"):
        train(make_recipe(train__predict="current"), tmp_path / "run", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_a_bounded_length_is_held_to_it(make_recipe, tmp_path, monkeypatch):
    from palimpsest.models.gpn import GPNM

    monkeypatch.setattr(GPNM, "max_length", property(lambda self: 4))
    with pytest.raises(ConfigError, match="at most 4 positions"):
        train(make_recipe(), tmp_path / "run", progress=False)


def test_a_state_that_grows_is_not_carried_on_for_ever(make_recipe, tmp_path, monkeypatch):
    from palimpsest.models.gpn import GPNM

    monkeypatch.setattr(GPNM, "state_bytes", lambda self, batch=1, length=0: 8 * batch * length)
    with pytest.raises(ConfigError, match="grows with the text, to 800 bytes"):
        train(make_recipe(data__order="stream"), tmp_path / "run", progress=False)
    train(make_recipe(train__steps=1), tmp_path / "run", progress=False)


def test_token_shards_train_as_the_text_does(make_recipe, tmp_path, text_file):
    from palimpsest.text import ByteTokenizer, read_documents, write_shards

    write_shards(tmp_path / "shards", read_documents(text_file), ByteTokenizer())
    changes = {"train__steps": 3, "data__validation_fraction": 0.0}
    text = train(make_recipe(**changes), tmp_path / "text", progress=False)
    shards = make_recipe(data__train=[str(tmp_path / "shards")], **changes)
    again = train(shards, tmp_path / "again", progress=False)
    assert [r["loss"] for r in text.metrics] == [r["loss"] for r in again.metrics]
    assert text.validation is None
    with pytest.raises(ConfigError, match="cannot be split"):
        train(make_recipe(data__train=[str(tmp_path / "shards")]), tmp_path / "x", progress=False)


def test_recall_reports_accuracy_per_number_of_pairs(make_recipe, tmp_path):
    recipe = make_recipe(
        data__task="recall",
        data__seq_len=14,
        data__task_fields={"pairs": [1, 3]},
        train__steps=4,
        train__eval_every=2,
    )
    result = train(recipe, tmp_path / "run", progress=False)
    assert result.model.config.vocab_size == 64
    for row in (r for r in result.metrics if r["kind"] == "validation"):
        assert list(row["accuracy_by_pairs"]) == ["1", "3"]
        mean = sum(row["accuracy_by_pairs"].values()) / 2
        assert row["accuracy"] == pytest.approx(mean)
    assert not (result.folder / "tokenizer").exists()

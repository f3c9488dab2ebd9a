"""A task of your own: write rows and a prompt, make a run of them, and train without any network."""

from pathlib import Path

import numpy as np

from sfnode import Trainer
from sfnode.engine.core import UpdateBatch
from sfnode.preparing import scalars
from sfnode.preparing.manifest import build
from sfnode.tasks.public_files import typed
from sfprotocol.seeds import feed_key, update_seeds

GOOD, BAD = ("delicious", "fresh", "charming", "bright"), ("stale", "bland", "rude", "shabby")
THINGS = ("soup", "bread", "staff", "waiter", "room", "garden")
ROWS = [f"{thing} was {word} .\t{int(word in GOOD)}" for thing in THINGS for word in GOOD + BAD]
Path("rows.tsv").write_text("\n".join(["text\tlabel", *ROWS]) + "\n")

run = {"name": "mine", "kind": "classification", "template": "the {text} it was", "train": "rows.tsv"}
run |= {"verbalizer": {"0": "bad", "1": "good"}, "test": "rows.tsv", "schedule": "cosine"}
run |= {"update_budget": 1536, "epoch_updates": 256, "batch_size": 4, "learning_rate": 1e-3}
manifest = build(run)  # the built-in model; run | {"model": "facebook/opt-125m"} for another
rows = typed(manifest.data)  # where they are: a manifest says no more than their name
with Trainer.load(manifest, places=rows) as trainer:
    manifest = scalars.with_limit(manifest, scalars.measure(trainer))  # nobody can say more
Path("mine.toml").write_text(manifest.to_toml())  # `sfnode join --run mine.toml` trains it with others

trainer = Trainer.load(manifest, places=rows)
before = trainer.evaluate()
key = feed_key(manifest.run_id, origin=bytes(32), incarnation=0)
for first in range(0, 1536, 16):
    epoch, seeds = manifest.parameters().epoch_of(first), update_seeds(key, first, 16)
    result = trainer.step(seeds.tolist(), epoch)
    trainer.apply(UpdateBatch(np.full(16, epoch), seeds, np.array(result.scalars)))
after = trainer.evaluate()
print(f"accuracy {before.value:.2f} -> {after.value:.2f}, loss {before.loss:.3f} -> {after.loss:.3f}")

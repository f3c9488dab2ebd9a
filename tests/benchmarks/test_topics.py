"""The generated topics are even, no text is there twice, and test texts have subjects of their own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks import topics
from sfnode.tasks import dataset


def test_topics_are_even_and_no_text_occurs_twice() -> None:
    train, test = topics.rows("train"), topics.rows("test")
    assert Counter(topic for _, topic in train) == dict.fromkeys(range(4), 512)
    assert Counter(topic for _, topic in test) == dict.fromkeys(range(4), 250)
    assert len(dict([*train, *test])) == len(train) + len(test)


def test_no_test_text_has_a_subject_of_the_training_texts() -> None:
    subjects = [who for topic in topics.TOPICS for who in topic.who]
    texts = ["\n".join(text.lower() for text, _ in topics.rows(split)) for split in topics.ROWS]
    seen = [{who for who in subjects if who in text} for text in texts]
    assert all(seen)
    assert seen[0].isdisjoint(seen[1])


def test_its_files_are_rows_of_its_task(tmp_path: Path) -> None:
    source = str(topics.write(tmp_path) / "test.tsv")
    assert len(dataset.load_rows(source, topics.PRESET.task)) == 1000

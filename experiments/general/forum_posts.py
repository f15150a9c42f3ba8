"""Add forum posts and fragments to the pool: titles, posts, pairs of both, and words as typed into a search box.

The pool of `distill_packed.py` has encyclopaedias, papers and manuals; this adds how people write. The posts are those
of the repository `umbrae/reddit-top-2.5-million` (Public Domain Dedication and License): the 1,000 most popular posts
of 2,500 forums, of August 2013. Each forum gives at most 110 titles and 45 posts with their titles. Titles and posts
that stand in files named with --exclude are left out, by case and punctuation normalised.

Fragments are one to eight neighbouring words of texts of the pool, some of them in lower, upper or title case.

Run: python experiments/general/forum_posts.py REDDIT/data --out POOL --exclude DATA/sts/*.tsv DATA/clustering/*.tsv.gz
"""

from __future__ import annotations

import argparse
import csv
import gzip
import html
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from decoder2vec.text.files import read_columns, read_rows

_TITLES, _POSTS = 110, 45
"""Of a forum, at most."""
_FRAGMENTS = 120_000
_POST_WORDS = (60, 60, 120, 250, 350)
"""Posts are cut to one of these lengths."""
_WHOLE_POSTS = 0.3
"""Share of the posts that are also a text of their own, below their title."""
_FRAGMENT_WORDS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8)
_ADDRESS = re.compile(r"https?://\S+|www\.\S+")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKS = re.compile(r"[*_#>`~^]+")


def normalised(text: str) -> str:
    """Letters and digits in lower case, for comparing texts."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def clean(text: str) -> str:
    """Without entities, addresses, Markdown and line breaks."""
    text = _ADDRESS.sub("", _LINK.sub(r"\1", html.unescape(html.unescape(text))))
    return " ".join(_MARKS.sub(" ", text).split())


def is_western(text: str) -> bool:
    """Whether nine in ten characters are Latin letters or signs."""
    return sum(character < "\u0250" for character in text) >= 0.9 * len(text)


def excluded_texts(files: Iterable[Path]) -> set[str]:
    """All cells of the files, normalised."""
    return {normalised(cell) for file in files for _, row in read_rows(file) for cell in row.values()}


def read_forum(file: Path, seen: set[str], rng: random.Random) -> tuple[list[str], list[tuple[str, str]]]:
    """Titles, and (title, post), of one forum; `seen` are normalised texts that are left out, and grows."""
    csv.field_size_limit(10**9)
    with file.open(encoding="utf-8", errors="replace", newline="") as lines:
        rows = list(csv.DictReader(lines))
    rng.shuffle(rows)
    titles: list[str] = []
    posts: list[tuple[str, str]] = []
    for row in rows:
        title, post = clean(row["title"] or ""), clean(row["selftext"] or "")
        key = normalised(title)
        if row["over_18"] == "True" or key in seen or len(key) < 8 or not is_western(title):
            continue
        words = post.split()
        if len(words) >= 25 and len(posts) < _POSTS and is_western(post) and normalised(post) not in seen:
            posts.append((title, " ".join(words[: rng.choice(_POST_WORDS)])))
        elif len(titles) < _TITLES and 2 <= len(title.split()) <= 40:
            titles.append(title)
        else:
            continue
        seen.add(key)
    return titles, posts


def fragments(texts: Sequence[str], count: int, rng: random.Random) -> Iterator[str]:
    """Different fragments of texts; fewer than `count` if the texts are few."""
    known = set(texts)
    for _ in range(20 * count):
        words = rng.choice(texts).split()
        if len(words) < 6:
            continue
        size = rng.choice(_FRAGMENT_WORDS)
        begin = rng.randrange(max(1, len(words) - size))
        fragment = " ".join(words[begin : begin + size]).strip(".,;:()\"'")
        case = rng.random()
        for share, change in ((0.3, str.lower), (0.37, str.upper), (0.5, str.title)):
            if case < share:
                fragment = change(fragment)
                break
        if len(fragment) >= 4 and fragment not in known:
            known.add(fragment)
            yield fragment
            count -= 1
            if not count:
                return


def write_table(file: Path, header: str, rows: Iterable[Sequence[str]]) -> None:
    """Write a gzipped table; texts have no tabs or line breaks."""
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.write(header + "\n")
        lines.writelines("\t".join(row) + "\n" for row in rows)


def add_posts(forums: Path, pool: Path, excluded: Iterable[Path], *, n_fragments: int = _FRAGMENTS) -> None:
    """Write texts-forum.tsv.gz and pairs-forum.tsv.gz into the pool; see the description of this file."""
    rng, seen = random.Random(0), excluded_texts(excluded)
    pool_texts = [
        text for file in sorted(pool.glob("texts-[0-9]*.tsv.gz")) for (text,) in read_columns(file, ("text",))
    ]
    texts: list[tuple[str, str]] = []
    pairs: list[tuple[str, str, str]] = []
    for file in tqdm(sorted(forums.glob("*.csv")), desc="forums", disable=None):
        titles, posts = read_forum(file, seen, rng)
        texts += [("reddit-title", title) for title in titles]
        texts += [("reddit-post", f"{title} {post}") for title, post in posts if rng.random() < _WHOLE_POSTS]
        pairs += [("reddit", title, post) for title, post in posts]
    texts += [("fragment", fragment) for fragment in fragments(pool_texts, n_fragments, rng)]
    write_table(pool / "texts-forum.tsv.gz", "source\ttext", texts)
    write_table(pool / "pairs-forum.tsv.gz", "source\ttext1\ttext2", pairs)
    print(f"{len(texts):,} texts and {len(pairs):,} pairs added to {pool}")


def main() -> None:
    """Read the options and add the posts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forums", type=Path, help="folder of CSV files, one for each forum")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pool")
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="tables whose texts are left out")
    arguments = parser.parse_args()
    add_posts(arguments.forums, arguments.out, arguments.exclude)


if __name__ == "__main__":
    main()

"""A page parsed, so that a test can look into it."""

from __future__ import annotations

from html.parser import HTMLParser

EVIL = "<script>alert('x')</script> & \"quotes\""


class Page(HTMLParser):
    """Tags, addresses and text of a page; every tag must be closed in order."""

    void = ("meta", "img", "br")

    def __init__(self, file):
        super().__init__()
        self.tags, self.open, self.addresses, self.words = [], [], [], []
        self.feed(file.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

"""A parser for HTML pages, so that tests can look into them."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE_TEXT = "<script>alert('x')</script> & \"quotes\""
"""A text that breaks a page which does not escape it."""


class Page(HTMLParser):
    """Policy, tags, ids, addresses and text of a page (but of no script or style); tags must be closed in order."""

    void_tags = ("meta", "link")

    def __init__(self, file):
        super().__init__()
        self.file = file
        self.source = file.read_text(encoding="utf-8")
        self.policy = ""
        self.tags, self.open, self.ids, self.addresses, self.texts = [], [], [], [], []
        self.feed(self.source)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if ("http-equiv", "Content-Security-Policy") in attributes:
            self.policy = dict(attributes)["content"]
        self.ids += [value for name, value in attributes if name == "id"]
        self.addresses += [
            value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset", "action")
        ]
        if tag not in self.void_tags:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.void_tags:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

"""Templates: the prompt around a text, and which part of the prompt is pooled.

One rule decides what is pooled: everything from the first character of the last `{text}` slot to the end of the
prompt. So a prefix or instruction is never pooled; where the text is repeated, its second copy is; and the last token
of a prompt with a suffix is the last token of the suffix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from decoder2vec.errors import InputError, unknown_name

SLOT = "{text}"

TEMPLATES = {
    "plain": "{text}",
    "prompteol": 'This sentence : "{text}" means in one word: "',
    "prompteol_tight": 'This sentence: "{text}" means in one word: "',
    "knowledge": (
        "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms "
        "provide additional but less central details. With this in mind, "
        'this sentence: "{text}" means in one word: "'
    ),
    "echo": "Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
    "instruct": "Instruct: Retrieve semantically similar text.\nQuery: {text}",
}
"""Templates by name; any other string that contains {text} is a template too."""


@dataclass(frozen=True)
class Template:
    """A prompt with one or more `{text}` slots."""

    string: str

    @classmethod
    def of(cls, name_or_string: str) -> Template:
        """Return a template by its name, or from a string that contains {text}."""
        if name_or_string in TEMPLATES:
            return cls(TEMPLATES[name_or_string])
        if SLOT not in name_or_string:
            error = unknown_name("template", name_or_string, TEMPLATES)
            raise InputError(f"{error} A template of your own must contain {SLOT}.")
        return cls(name_or_string)

    def with_prefix(self, prompt: str) -> Template:
        """Return the template with a prompt in front; a prompt that contains {text} itself replaces the template."""
        return Template(prompt) if SLOT in prompt else Template(prompt + self.string)

    @property
    def slots(self) -> int:
        """Number of `{text}` slots."""
        return self.string.count(SLOT)

    def render(self, text: str) -> tuple[str, int, int]:
        """Return the prompt, and begin and end of the last copy of the text in it, in characters."""
        head, tail, _ = self._parts
        head = head.replace(SLOT, text)
        return head + text + tail, len(head), len(head) + len(text)

    def pooled_from(self, text: str) -> int:
        """Return the character of the prompt from which on it is pooled."""
        head, _, n_copies = self._parts
        return len(head) + n_copies * (len(text) - len(SLOT))

    @cached_property
    def _parts(self) -> tuple[str, str, int]:
        """What is before and after the last slot, and the number of slots before it."""
        head, tail = self.string.rsplit(SLOT, 1)
        return head, tail, head.count(SLOT)

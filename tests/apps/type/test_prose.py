"""Which part of a continuation somebody who writes prose is shown."""

from __future__ import annotations

import pytest

from edgedec.apps.type.prose import first_word, fitted

CASES = [
    # before, after, the model's continuation, what is shown
    ("The cat sat on the", "", " mat and looked at me.", " mat and looked"),
    ("I am writ", "", "ing to you today", "ing to you"),
    ("We met. ", "", "then we left", "Then we left"),
    ("we met. ", "", "then we left", "then we left"),
    ("THE WEA", "", "ther is fine", "THER is fine"),
    ("Hello ", "", " there friend", "there friend"),
    ("One line", "", " ends\nand another", " ends"),
    ("She said", "", ".", ""),
    ("I have 2", "", "5 apples", ""),
    ("Write to me@exam", "", "ple.com please", ""),
    ("See www.exam", "", "ple.com", ""),
    ("cd /usr/lo", "", "cal/bin", ""),
    ("It was t", "", "he best", ""),
    ("I", "", " am very glad", " am very glad"),
    ("It costs about", "", " 20 dollars", ""),
    ("It costs about", "", " the same 20", " the same"),
    ("in the mid", "dle of it", "dle", ""),
    ("in the", " end", " end", ""),
    ("", "", "Once upon a time", ""),
    ("Done.", "", " Next one", ""),
    ("I'", "", "m very glad", "m very glad"),
    ("DON'", "", "t worry", "T worry"),
    ("He said (", "", "and smiled", "and smiled"),
    ("Hello,", "", "how are you", ""),
    ("Hello,", "", " how are you", " how are you"),
    ("We met Mr. ", "", "and Mrs. Smith", "and Mrs. Smith"),
    ("Apples, pears, etc. ", "", "are fruit", "are fruit"),
    ('"It is late." ', "", "then he left", "Then he left"),
]

GERMAN = [
    ("Wir bauen ein Hoch", "", "haus am See", "haus am See"),
    ("Wir essen Obst, z. B. ", "", "süße Äpfel", "süße Äpfel"),
    ("Das geht bzw. ", "", "ging so", "ging so"),
    ("Vom 3. ", "", "bis zum Ende", "bis zum Ende"),
    ("Er sagte: „", "", "Komm doch her", "Komm doch her"),
    ("Er sagte: „K", "", "omm doch her", ""),
    ("„Komm her.“ ", "", "dann ging er", "Dann ging er"),
    ("DIE GRO", "", "ße Stadt", "SSE Stadt"),
    ("Das ist ein E-", "", "Mail-Programm", "Mail-Programm"),
    ("Ich nehme die U-B", "", "ahn nach Hause", "ahn nach Hause"),
]

SPANISH = [
    ("¿Có", "", "mo estás hoy?", "mo estás hoy?"),
    ("¿", "", "Cómo estás hoy?", "Cómo estás hoy?"),
    ("¿C", "", "ómo estás?", ""),
    ("Hola. ¿", "", "cómo estás?", "Cómo estás?"),
    ("Hola. ", "", "¿cómo estás?", "¿Cómo estás?"),
    ("Si vienes, ", "", "¿qué hacemos?", "¿qué hacemos?"),
    ("¡Qué bien! ", "", "nos vemos mañana", "Nos vemos mañana"),
    ("Hay fruta, p. ej. ", "", "peras y uvas", "peras y uvas"),
    ("Como dijo Ud. ", "", "el otro día", "el otro día"),
]

FRENCH = [
    ("Comment allez-", "", "vous ? Moi bien", "vous ? Moi bien"),
    ("Il dit", "", " oui ; elle rit : non merci", " oui ; elle rit :"),
    ("Il cria", "", "\u202f! Et partit", "\u202f! Et partit"),
    ("Nous allons à l'", "", "école demain matin", "école demain matin"),
    ("L'", "", "homme est venu", "homme est venu"),
    ("L’É", "", "tat français", ""),
    ("Je crois qu'i", "", "l vient demain", ""),
    ("Je crois qu'il", "", " vient demain", " vient demain"),
    ("C'est aujourd'h", "", "ui que je pars", "ui que je"),
    ("Il a dit : « ", "", "Je viens demain", "Je viens demain"),
    ("Il a dit", "", " : « Je viens", " : « Je viens"),
    ("Il a dit : « Viens ! » ", "", "puis il partit", "Puis il partit"),
    ("J'ai vu M. ", "", "et Mme Dupont", "et Mme Dupont"),
    ("Vraiment", "", " ?", ""),
]


@pytest.mark.parametrize(("before", "after", "text", "shown"), [*CASES, *GERMAN, *SPANISH, *FRENCH])
def test_fitted(before: str, after: str, text: str, shown: str) -> None:
    assert fitted(before, after, text, is_complete=True) == shown


def test_word_that_may_grow_is_left_out() -> None:
    assert fitted("The cat sat on the", "", " mat and look", is_complete=False) == " mat and"
    assert fitted("The cat sat on the", "", " mat", is_complete=False) == ""


def test_words_at_a_time() -> None:
    assert fitted("The cat sat", "", " on the mat", is_complete=True, n_words=1) == " on"
    assert first_word(" on the mat") == " on"
    assert first_word("ing to") == "ing"
    assert first_word(" vous ? Oui") == " vous ?"
    assert first_word(" « mot » ici") == " « mot »"

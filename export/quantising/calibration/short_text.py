"""A text to measure activations on where nobody names one."""

SHORT_TEXT = """The ferry left at seven in the morning, an hour late, for fog lay over the bay. \
Maria counted the crates twice: 14 of oranges, 3 of coffee, and one that nobody had ordered. "Open \
it," said the captain, "before we are out of the harbour." Inside were letters, hundreds of them, \
tied with blue string and addressed to people who had moved away long ago.

def average(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

1. Heat the oven to 220 °C and slice two onions.
2. Mix 500 g of flour with 300 ml of water; let it rest for 45 minutes.
3. Bake until the crust is brown, then let it cool.

In 1869 the table of elements had gaps, and its author said what would fill them. He was right \
about gallium and germanium, wrong about others; what convinced people was less the order than the \
predictions. | year | found | |---|---| | 1875 | gallium | | 1886 | germanium |

Question: What is 17 * 24? Answer: 17 * 24 = 17 * 20 + 17 * 4 = 340 + 68 = 408. Why do leaves turn \
red? As days get shorter, trees stop making chlorophyll, and other colours show. {"name": "Ada", \
"age": 36, "tags": ["math", "engines"]} Please see https://example.org/help?id=7 for more!"""

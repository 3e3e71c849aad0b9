/* golden-tokenizers.c - usage: golden-tokenizers DIR..
 * DIR holds corpus.jsonl (a JSON string a line) and a folder for each tokenizer: tokenizer.json or
 * tokenizer.json.zst, and expected.jsonl with, for every line of the corpus, `ids`, `special` (ids
 * with special tokens added; null: the same) and `decoded`. Every answer must be equal. Lines of the
 * corpus are text with control tokens in it. Without DIR it runs on tests/data/tokenizers. */
#include "help_tok.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    int cases = 0, bad = 0;

    for (int i = 1; i < argc; i++)
        cases += test_golden_tok(argv[i], &bad);
    if (argc < 2)
        cases = test_golden_tok("tests/data/tokenizers", &bad);
    printf("%d cases, %d wrong\n", cases, bad);
    return bad || !cases;
}

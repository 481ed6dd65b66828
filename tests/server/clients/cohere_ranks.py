"""Cohere's own clients, of both versions of its API: documents in the order of their relevance."""

import sys

import cohere

documents = ["The team won the match", "Heavy rain is expected", "Two eggs and flour"]
for client in (cohere.Client, cohere.ClientV2):
    with_key = client("none", base_url=sys.argv[1])
    answer = with_key.rerank(model="text_ranker", query="rain", documents=documents, top_n=2)
    best, second = answer.results
    assert best.index == 1
    assert 1 >= best.relevance_score > second.relevance_score >= 0
print(documents[best.index], best.relevance_score)

"""langchain-cohere's reranker: the documents that belong to a question."""

import sys

from langchain_cohere import CohereRerank
from langchain_core.documents import Document

texts = ["The team won the match", "Heavy rain is expected", "Two eggs and flour"]
ranker = CohereRerank(model="text_ranker", base_url=sys.argv[1], cohere_api_key="none", top_n=2)
found = ranker.compress_documents([Document(page_content=text) for text in texts], "rain")
assert found[0].page_content == texts[1]
assert len(found) == 2
print(found[0].metadata)

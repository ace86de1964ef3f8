"""Calls a gateway with clients as they are installed from PyPI, and prints what they return as JSON.

Run by tests/server/test_gateway_sdks.py in an environment of its own: URL and key are its arguments.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

URL, KEY = sys.argv[1:3]
RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"
TEXTS = ["The ferry leaves at dawn.", "tea"]


def openai_sdk() -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    default = client.embeddings.create(model="embed", input=TEXTS)
    floats = client.embeddings.create(model="embed", input=TEXTS, encoding_format="float")
    try:
        client.embeddings.create(model="nothing", input="tea")
        error = None
    except openai.NotFoundError as refusal:
        error = refusal.code
    return {
        "default": [entry.embedding for entry in default.data],
        "float": [entry.embedding for entry in floats.data],
        "tokens": default.usage.prompt_tokens,
        "models": [model.id for model in client.models.list()],
        "error": error,
    }


def cohere_sdk() -> dict[str, Any]:
    import cohere

    client = cohere.ClientV2(api_key=KEY, base_url=URL)
    embedded = client.embed(model="embed", texts=TEXTS, input_type="search_document", embedding_types=["float"])
    ranked = client.rerank(model="embed", query="tea", documents=["a tractor", "tea", "a pot of tea"], top_n=2)
    return {
        "float": embedded.embeddings.float_,
        "ranking": [[result.index, result.relevance_score] for result in ranked.results],
    }


def langchain_openai() -> dict[str, Any]:
    from langchain_openai import OpenAIEmbeddings

    client = OpenAIEmbeddings(model="embed", base_url=f"{URL}/v1", api_key=KEY, check_embedding_ctx_length=False)
    return {"documents": client.embed_documents(TEXTS), "query": client.embed_query("tea")}


def langchain_huggingface() -> dict[str, Any]:
    from huggingface_hub import InferenceClient
    from langchain_huggingface import HuggingFaceEndpointEmbeddings

    client = HuggingFaceEndpointEmbeddings(model="embed", huggingfacehub_api_token=KEY)
    client.client = InferenceClient(URL, token=KEY)  # the class takes no URL by itself
    return {"documents": client.embed_documents(TEXTS), "query": client.embed_query("tea")}


def llama_index_openai() -> dict[str, Any]:
    from llama_index.embeddings.openai import OpenAIEmbedding

    client = OpenAIEmbedding(model_name="embed", api_base=f"{URL}/v1", api_key=KEY)
    return {"documents": client.get_text_embedding_batch(TEXTS), "query": client.get_query_embedding("tea")}


def llama_index_tei() -> dict[str, Any]:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(model_name="embed", base_url=URL, auth_token=KEY)
    return {"documents": client.get_text_embedding_batch(TEXTS), "query": client.get_query_embedding("tea")}


def haystack() -> dict[str, Any]:
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.utils import Secret

    server = {"model": "embed", "api_base_url": f"{URL}/v1", "api_key": Secret.from_token(KEY)}
    embedder = OpenAIDocumentEmbedder(**server, progress_bar=False)
    documents = embedder.run([Document(content=text) for text in TEXTS])["documents"]
    query = OpenAITextEmbedder(**server).run("tea")["embedding"]
    return {"documents": [document.embedding for document in documents], "query": query}


def recipes() -> dict[str, Any]:
    """What the blocks of docs/recipes.md leave behind, each run as it stands there, with our address and key."""
    left: dict[str, Any] = {"blocks": 0, "found": []}
    for block in re.findall(r"^```python\n(.*?)^```$", RECIPES.read_text(), re.MULTILINE | re.DOTALL):
        code = block.replace("http://localhost:8080", URL).replace('"none"', repr(KEY))
        names: dict[str, Any] = {}
        exec(code, names)
        left["blocks"] += 1
        if "found" in names:
            found = names["found"]
            left["found"].append(getattr(found, "page_content", None) or getattr(found, "content", None) or found.text)
        left |= {name: names[name] for name in ("vectors", "best") if name in names}
    return left


CALLS = (
    openai_sdk,
    cohere_sdk,
    langchain_openai,
    langchain_huggingface,
    llama_index_openai,
    llama_index_tei,
    haystack,
    recipes,
)
json.dump({call.__name__: call() for call in CALLS}, sys.stdout)

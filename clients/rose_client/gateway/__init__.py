"""An HTTP gateway: the routes of OpenAI, Perplexity, Cohere, Jina and text-embeddings-inference over ROSE servers."""

"""The API of llama.cpp's server, and vLLM's endpoints outside of OpenAI's API."""

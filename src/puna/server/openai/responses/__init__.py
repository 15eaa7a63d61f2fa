"""OpenAI's Responses API: routes, requests, items, replies, and what is kept of them."""

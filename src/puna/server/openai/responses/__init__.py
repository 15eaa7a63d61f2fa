"""OpenAI's Responses API: routes, requests, replies, and stored responses."""

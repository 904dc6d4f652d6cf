"""The shapes of OpenAI's two APIs: requests read, answers written."""

"""Stage: what the loop works with: its passes, its evaluations and what is kept of it."""

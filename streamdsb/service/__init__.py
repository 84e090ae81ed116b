"""The request service: models stay resident, requests bring a new field, each is solved whole."""

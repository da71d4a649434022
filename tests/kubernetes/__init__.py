"""The Helm chart in a real Kubernetes."""

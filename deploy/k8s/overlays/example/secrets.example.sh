#!/bin/sh
# How the secrets of this overlay are made, once. Each process mounts only its own; with External Secrets or Sealed Secrets make the same names.
set -eu
: "${POSTGRES_HOST:?}" "${OWNER_PASSWORD:?}" "${API_PASSWORD:?}" "${SYSTEM_PASSWORD:?}" "${REDIS_URL:?}" "${PEPPER:?}" "${KEK:?}" "${FLOWER_PASSWORD:?}"
kubectl apply --filename="$(dirname "$0")/namespace.yaml"
make() { kubectl --namespace harness create secret generic "$@" --dry-run=client --output=yaml | kubectl apply --filename=-; }

make harness-owner --from-literal=HARNESS_OWNER_DATABASE_URL="postgresql://harness:$OWNER_PASSWORD@$POSTGRES_HOST:5432/harness"
make harness-api --from-literal=HARNESS_DATABASE_URL="postgresql://harness_api:$API_PASSWORD@$POSTGRES_HOST:5432/harness" \
  --from-literal=HARNESS_REDIS_URL="$REDIS_URL" --from-literal=HARNESS_API__KEY_PEPPER="$PEPPER" --from-literal=HARNESS_SECRETS__KEK="$KEK" \
  --from-literal=HARNESS_FLOWER__PASSWORD="$FLOWER_PASSWORD"
make harness-system --from-literal=HARNESS_SYSTEM_DATABASE_URL="postgresql://harness_system:$SYSTEM_PASSWORD@$POSTGRES_HOST:5432/harness" \
  --from-literal=HARNESS_REDIS_URL="$REDIS_URL" --from-literal=HARNESS_SECRETS__KEK="$KEK"
make harness-models --from-literal=HARNESS_OPENAI_API_KEY="${OPENAI_API_KEY:-}" --from-literal=HARNESS_ANTHROPIC_API_KEY="${ANTHROPIC_API_KEY:-}"
make harness-flower --from-literal=HARNESS_REDIS_URL="$REDIS_URL" --from-literal=HARNESS_FLOWER__PASSWORD="$FLOWER_PASSWORD"

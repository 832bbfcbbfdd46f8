#!/bin/sh
# Generates, checks, builds and tests the client, from a clean checkout. Needs Node 20 or newer with npm.
set -eu
cd "$(dirname "$0")"
npm install --no-package-lock --no-fund --no-audit
rm -rf dist build
npm run generate
npm run check
npm test

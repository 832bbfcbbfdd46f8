#!/bin/sh
# Generates, checks, builds and tests the Rust client from a clean checkout; needs cargo with rustfmt and clippy.
# With --release it also makes the release build of the conformance runner, which is for measurements.
set -eu
cd "$(dirname "$0")"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-0}"

cargo run --quiet --package clag-generate
cargo fmt --all --check
cargo clippy --quiet --workspace --all-targets -- --deny warnings
cargo test --quiet --workspace
cargo check --quiet --package clag-client --no-default-features
RUSTDOCFLAGS="--deny warnings" cargo doc --quiet --no-deps --package clag-client
cargo build --quiet --package clag-conformance --example agent --package clag-client --bins
if [ "${1:-}" = --release ]; then
    cargo build --quiet --release --package clag-conformance
fi

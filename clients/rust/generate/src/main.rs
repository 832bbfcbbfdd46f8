//! Writes the generated code of the client, its tests and its conformance runner, from `clients/proto`.
//!
//! It is committed, so that who uses the client needs neither this nor protoc. Run it with
//! `cargo run -p clag-generate` after a change of the contract.

mod tables;

use std::error::Error;
use std::fs;
use std::path::Path;

use prost_types::FileDescriptorSet;
use protox::Compiler;

const FILES: [&str; 4] = [
    "clag/v1/types.proto",
    "clag/v1/memory_service.proto",
    "clag/v1/cluster_service.proto",
    "clag/v1/admin_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the workspace has no directory")?;
    let mut compiler = Compiler::new([workspace.join("../proto")])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let contract = compiler.file_descriptor_set();

    write_client(contract.clone(), &workspace.join("src/generated"))?;
    write_test_server(contract.clone(), &workspace.join("testing/src/generated"))?;
    let table = workspace.join("conformance/src/generated.rs");
    fs::write(table, tables::of_contract(&contract)?)?;
    Ok(())
}

/// Messages and client stubs.
fn write_client(contract: FileDescriptorSet, directory: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(directory)?;
    // Ordered maps encode the same message to the same bytes each time.
    let builder = tonic_prost_build::configure().build_server(false).build_transport(false).btree_map(".");
    builder.emit_rerun_if_changed(false).out_dir(directory).compile_fds(contract)?;
    Ok(())
}

/// The server side of `MemoryService`, over the client's messages.
fn write_test_server(mut contract: FileDescriptorSet, directory: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(directory)?;
    for file in &mut contract.file {
        file.service.retain(|service| service.name() == "MemoryService");
    }
    let builder = tonic_prost_build::configure().build_client(false).build_transport(false);
    let builder = builder.extern_path(".clag.v1", "::clag_client::proto").generate_default_stubs(true);
    builder.emit_rerun_if_changed(false).out_dir(directory).compile_fds(contract)?;
    Ok(())
}

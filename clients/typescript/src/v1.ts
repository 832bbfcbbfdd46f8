/**
 * The messages, enums and services of the package `clag.v1`, with the documentation of the contract.
 *
 * @module
 */

export * from "./gen/clag/v1/admin_service_pb.js";
export * from "./gen/clag/v1/cluster_service_pb.js";
export * from "./gen/clag/v1/memory_service_pb.js";
export * from "./gen/clag/v1/types_pb.js";

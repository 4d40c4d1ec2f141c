// SPDX-License-Identifier: Apache-2.0
#include "fill.h"

#include <algorithm>

#include "base/clock.h"
#include "base/format.h"
#include "workload/content.h"

namespace cistern {

NamespaceSpec BenchNamespace(std::uint64_t block_bytes) {
  NamespaceSpec spec;
  spec.fields = {{"workload", "bench"}, {"block_bytes", Text(block_bytes)}};
  GroupSpec group;
  group.name = "full";
  group.part_bytes = {block_bytes};
  spec.groups = {group};
  return spec;
}

Result<FilledBlocks> Fill(Store& store, std::size_t count, std::uint64_t block_bytes,
                          std::size_t chain_blocks, const std::function<Status(std::size_t)>& pace,
                          std::uint64_t first_number) {
  Result<Namespace> ns = store.Attach(BenchNamespace(block_bytes));
  if (!ns) return Error(ns.error());
  FilledBlocks filled{.ns = *ns, .block_bytes = block_bytes};
  filled.keys.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    filled.keys.push_back(workload::WorkloadKey(first_number + i, block_bytes));

  const std::size_t batch = std::clamp<std::size_t>((8u << 20) / block_bytes, 1, 1024);
  Result<Staging> staging = store.AllocateStaging(batch * block_bytes);
  if (!staging) return Error(staging.error());
  for (std::size_t first = 0; first < count; first += batch) {
    std::vector<BlockWrite> writes(std::min(batch, count - first));
    for (std::size_t i = 0; i < writes.size(); ++i) {
      const std::size_t number = first + i;
      std::span<std::byte> bytes(staging->data() + i * block_bytes, block_bytes);
      workload::FillContent(filled.keys[number], bytes);
      writes[i].key = filled.keys[number];
      if (number % chain_blocks != 0) writes[i].parent = filled.keys[number - 1];
      writes[i].data = bytes;
    }
    Result<WriteResult> result = store.Write(*ns, writes).Wait();
    if (!result) return Error(result.error());
    for (const WriteOutcome& outcome : result->outcomes) {
      if (outcome.code != Code::kOk) return Error(outcome.code, Text("filling the bench: ", result->message));
    }
    if (!pace) continue;
    if (Status status = pace(first + writes.size()); !status.ok()) return Error(std::move(status));
  }
  return filled;
}

Status PutOne(Store& store, const Namespace& ns, const BlockWrite& write) {
  const SystemClock clock;
  const Instant until = clock.Now().PlusUs(kDefaultDeadlineUs);
  for (;;) {
    const Result<WriteResult> result = store.Write(ns, std::span(&write, 1)).Wait();
    if (!result) return result.error();
    const Code code = result->outcomes[0].code;
    if (code == Code::kOk) return Status();
    if (code != Code::kBusy || clock.Now() > until)
      return Status(code, Text("a put of the bench: ", result->message));
  }
}

Result<Lease> LeaseAll(Store& store, const FilledBlocks& blocks) {
  std::vector<BlockRef> refs;
  for (const BlockKey& key : blocks.keys) refs.push_back({.key = key});
  AcquireOptions options;
  options.lease_us = kMaxLeaseUs;
  Result<Lease> lease = store.Acquire(blocks.ns, refs, options).Wait();
  if (!lease) return lease;
  for (const View& view : lease->views()) {
    if (view.data == nullptr) return Error(Code::kMiss, "a block of the bench is not resident");
  }
  return lease;
}

}  // namespace cistern

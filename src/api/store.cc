// SPDX-License-Identifier: Apache-2.0
// Store: a client, and where it was opened, the node behind it. Both ways in give the same calls because
// they are the same calls.
#include "cistern/store.h"

#include <optional>
#include <utility>

#include "base/format.h"
#include "client/client.h"
#include "client/fork_mark.h"
#include "client/near_node.h"
#include "node/node.h"
#include "store/requests.h"
#include "wire/protocol.h"

namespace cistern {

struct Store::Parts {
  // A forked child has none of the node's threads: the node stays the parent's and is not ended.
  ~Parts() {
    if (fork_mark && fork_mark->forked()) static_cast<void>(node.release());
  }
  std::optional<client::ForkMark> fork_mark;  // of the process that has the node
  std::unique_ptr<node::Node> node;           // ends after the client
  std::unique_ptr<client::Client> client;
};

namespace {

client::NearNode NearOf(node::Node& node) {
  static_assert(client::NearNode::kMostBlocks == store::kAtOnce);
  return {
      .acquire =
          [&node](std::uint64_t session, std::uint32_t slot, std::uint64_t incarnation,
                  std::span<const BlockRef> blocks, std::int64_t lease_us, std::span<wire::ViewItem> views) {
            return node.AcquireAtOnce(session, slot, incarnation, blocks, lease_us, views);
          },
      .release = [&node](std::uint64_t session,
                         std::uint64_t lease) { return node.ReleaseAtOnce(session, lease); }};
}

}  // namespace

Store::Store(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Result<Store> Store::Open(const OpenOptions& options) {
  node::NodeOptions node_options;
  static_cast<OpenOptions&>(node_options) = options;
  node_options.log_level = "warning";
  auto parts = std::make_unique<Parts>();
  Result<client::ForkMark> fork_mark = client::ForkMark::Make();
  if (!fork_mark) return Error(fork_mark.error());
  parts->fork_mark.emplace(std::move(*fork_mark));
  Result<std::unique_ptr<node::Node>> node = node::Node::Start(std::move(node_options));
  if (!node) return Error(node.error());
  parts->node = std::move(*node);
  Result<Fd> end = parts->node->ClientEnd();
  if (!end) return Error(end.error());
  ConnectOptions connect;
  connect.tenant = options.tenant;
  Result<std::unique_ptr<client::Client>> client =
      client::Client::Connect(end->Release(), connect, NearOf(*parts->node));
  if (!client) return Error(client.error());
  parts->client = std::move(*client);
  return Store(std::move(parts));
}

Result<Store> Store::Connect(const ConnectOptions& options) {
  auto parts = std::make_unique<Parts>();
  Result<std::unique_ptr<client::Client>> client = client::Client::Connect(options);
  if (!client) return Error(client.error());
  parts->client = std::move(*client);
  return Store(std::move(parts));
}

Result<Namespace> Store::Attach(const NamespaceSpec& spec, std::int64_t deadline_us) {
  return parts_->client->Attach(spec, deadline_us);
}
Result<Namespace> Store::AttachKnown(const NamespaceSpec& spec, std::int64_t deadline_us) {
  return parts_->client->Attach(spec, deadline_us, wire::kAttachKnown);
}
Ticket<MatchResult> Store::Match(const Namespace& ns, std::span<const BlockKey> chain,
                                 const MatchOptions& options) {
  return parts_->client->Match(ns, chain, options);
}
Ticket<ReadResult> Store::Read(const Namespace& ns, std::span<const BlockRead> blocks,
                               const ReadOptions& options) {
  return parts_->client->Read(ns, blocks, options);
}
Ticket<Lease> Store::Acquire(const Namespace& ns, std::span<const BlockRef> blocks,
                             const AcquireOptions& options) {
  return parts_->client->Acquire(ns, blocks, options);
}
Result<Staging> Store::AllocateStaging(std::uint64_t bytes, std::int64_t deadline_us) {
  return parts_->client->AllocateStaging(bytes, deadline_us);
}
Ticket<WriteResult> Store::Write(const Namespace& ns, std::span<const BlockWrite> blocks,
                                 const WriteOptions& options) {
  return parts_->client->Write(ns, blocks, options);
}
Ticket<std::uint32_t> Store::Publish(const Namespace& ns, std::span<const PutId> puts,
                                     std::int64_t deadline_us) {
  return parts_->client->Publish(ns, puts, deadline_us);
}
Ticket<std::uint32_t> Store::Abandon(const Namespace& ns, std::span<const PutId> puts,
                                     std::int64_t deadline_us) {
  return parts_->client->Abandon(ns, puts, deadline_us);
}
Ticket<std::uint32_t> Store::Touch(const Namespace& ns, std::span<const BlockKey> keys,
                                   std::int64_t deadline_us, std::string_view conversation) {
  return parts_->client->Touch(ns, keys, deadline_us, conversation);
}
Ticket<std::uint64_t> Store::EndConversation(const Namespace& ns, std::string_view conversation,
                                             std::int64_t deadline_us) {
  return parts_->client->EndConversation(ns, conversation, deadline_us);
}
Ticket<std::uint64_t> Store::Drop(const Namespace& ns, std::span<const BlockKey> keys,
                                  std::int64_t deadline_us) {
  return parts_->client->Drop(ns, keys, deadline_us);
}
Ticket<std::uint64_t> Store::DropNamespace(Namespace& ns, std::int64_t deadline_us) {
  return parts_->client->DropNamespace(ns, deadline_us);
}
Status Store::Report(const EngineReport& report) { return parts_->client->Report(report); }
Result<std::string> Store::StatusJson(std::int64_t deadline_us) {
  return parts_->client->StatusJson(deadline_us);
}
Result<std::uint32_t> Store::SwitchReads(std::string_view target, bool on, std::int64_t deadline_us) {
  return parts_->client->SwitchReads(target, on, deadline_us);
}
Result<std::uint32_t> Store::SwitchWrites(std::string_view target, bool on, std::int64_t deadline_us) {
  return parts_->client->SwitchWrites(target, on, deadline_us);
}
Result<std::uint32_t> Store::SwitchEngineReads(std::string_view engine, bool on, std::int64_t deadline_us) {
  return parts_->client->SwitchEngineReads(engine, on, deadline_us);
}
Result<std::uint32_t> Store::SwitchEngineWrites(std::string_view engine, bool on, std::int64_t deadline_us) {
  return parts_->client->SwitchEngineWrites(engine, on, deadline_us);
}
Result<std::uint64_t> Store::DropNamed(std::string_view target, std::int64_t deadline_us) {
  return parts_->client->DropNamed(target, deadline_us);
}
Status Store::Drain(const DrainOptions& options, std::int64_t deadline_us) {
  return parts_->client->Drain(options, deadline_us);
}
Result<std::uint64_t> Store::ResizeMemory(std::uint64_t bytes, std::int64_t deadline_us) {
  return parts_->client->ResizeMemory(bytes, deadline_us);
}
Result<std::string> Store::NamespacesJson(std::int64_t deadline_us) {
  return parts_->client->NamespacesJson(deadline_us);
}
Result<std::string> Store::ConfigurationJson(std::int64_t deadline_us) {
  return parts_->client->ConfigurationJson(deadline_us);
}
Result<std::string> Store::CellJson(std::int64_t deadline_us) {
  return parts_->client->CellJson(deadline_us);
}
Result<std::string> Store::CellHoldersJson(const Namespace& ns, std::span<const BlockKey> chain,
                                           std::int64_t deadline_us) {
  return parts_->client->HoldersJson(ns, chain, deadline_us);
}
Result<std::string> Store::CellExplanationJson(const Namespace& ns, std::span<const BlockKey> chain,
                                               std::int64_t deadline_us) {
  return parts_->client->ExplanationJson(ns, chain, deadline_us);
}
Status Store::TakeOutDevice(std::string_view path, std::int64_t deadline_us) {
  return parts_->client->TakeOutDevice(path, deadline_us);
}
Status Store::BringBackDevice(std::string_view path, std::int64_t deadline_us) {
  return parts_->client->BringBackDevice(path, deadline_us);
}
OwnerToken Store::owner() const { return parts_->client->owner(); }
std::size_t Store::Poll(std::vector<std::uint64_t>* ready) { return parts_->client->Poll(ready); }
int Store::event_fd() const { return parts_->client->event_fd(); }

Status Store::Put(const Namespace& ns, const BlockKey& key, const std::optional<BlockKey>& parent,
                  std::span<const std::byte> bytes, const WriteOptions& options) {
  BlockWrite write;
  write.key = key;
  write.parent = parent;
  write.data = bytes;
  Result<WriteResult> result = Write(ns, std::span(&write, 1), options).Wait();
  if (!result) return result.error();
  const WriteOutcome& outcome = result->outcomes.front();
  if (outcome.code != Code::kOk) return Status(outcome.code, result->message);
  if (outcome.state == WriteOutcome::State::kPending && !options.held)
    return client::WaitsForParent(key, parent);
  return Status();
}

Result<std::vector<std::byte>> Store::Get(const Namespace& ns, const BlockKey& key,
                                          const ReadOptions& options) {
  Result<std::uint64_t> size = parts_->client->FirstPartBytes(ns, key, 0);
  Lease lease;  // of a block that was below memory: it stays up until it is read
  if (!size && size.error().code() == Code::kMiss && parts_->client->has_lower()) {
    const BlockRef ref{key};
    const AcquireOptions fetch{.deadline_us = options.deadline_us, .worth_us = options.worth_us};
    Result<Lease> fetched = Acquire(ns, std::span(&ref, 1), fetch).Wait();
    if (!fetched) return Error(std::move(fetched.error()));
    lease = std::move(*fetched);
    size = parts_->client->FirstPartBytes(ns, key, 0);
  }
  if (!size) return Error(size.error());
  std::vector<std::byte> bytes(*size);
  ReadRange range{.bytes = *size, .to = bytes.data()};
  BlockRead read{.key = key, .ranges = std::span(&range, 1)};
  Result<ReadResult> result = Read(ns, std::span(&read, 1), options).Wait();
  if (!result) return Error(result.error());
  const Code outcome = result->outcomes.front();
  if (outcome == Code::kOk) return bytes;
  // Past the range's end: another record of this key came between the two looks, and this one's length is
  // gone.
  return Error(
      outcome == Code::kInvalid ? Code::kMiss : outcome,
      Text("block ", key.ToHex(), outcome == Code::kTooLate ? " is not here in time" : " is not here"));
}

}  // namespace cistern

// SPDX-License-Identifier: Apache-2.0
// A process's end of the server: the calls of cistern/store.h against the node of this host. What is resident
// is matched and read from shared memory by the calling thread, without the node and without a lock; all else
// goes through the session's ring and is answered into a ticket.
//
// Any number of threads may use a client. At most kRingEntries (256) tickets may be unanswered or not yet
// waited for; a call past that, or past the session's argument area, is kBusy at once. In a forked child
// every call is kDenied and destruction touches nothing that the parent shares. After the node went away
// every call is kGone; what was mapped stays mapped until the last ticket, lease and staging of the client is
// gone, and reads under way are exact or a miss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/key.h"
#include "cistern/lease.h"
#include "cistern/namespace.h"
#include "cistern/options.h"
#include "cistern/status.h"
#include "cistern/store.h"
#include "cistern/ticket.h"

namespace cistern::client {

struct Connection;
struct NearNode;
struct Request;

// kMiss: what one put of a block comes to that waits for its parent.
Status WaitsForParent(const BlockKey& key, const std::optional<BlockKey>& parent);

// A call takes at most 20,000 keys, blocks or put ids, a Write 4,096 parts (kMaxKeysPerCall and
// kMaxWritesPerCall of wire/protocol.h); more is kInvalid. Read has no such limit, nor has Match as far as
// the index answers it.
class Client final {
 public:
  // kGone: nobody listens at the socket; kMismatch: the node speaks another protocol; kDenied: another user,
  // tenant or owner; kBusy: the node has no room for a further session; kTooLate; kInvalid; kIoError.
  static Result<std::unique_ptr<Client>> Connect(const ConnectOptions& options);
  // Over a connected SOCK_SEQPACKET socket, which it takes over, to a node that adopted the other end;
  // options.socket is not looked at. With `near` the node is in this process and outlives the client.
  static Result<std::unique_ptr<Client>> Connect(int socket, const ConnectOptions& options, NearNode near);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Each as in cistern/store.h.
  // `flags` are AttachArgs'.
  Result<Namespace> Attach(const NamespaceSpec& spec, std::int64_t deadline_us, std::uint32_t flags = 0);
  Ticket<MatchResult> Match(const Namespace& ns, std::span<const BlockKey> chain,
                            const MatchOptions& options);
  Ticket<ReadResult> Read(const Namespace& ns, std::span<const BlockRead> blocks, const ReadOptions& options);
  Ticket<Lease> Acquire(const Namespace& ns, std::span<const BlockRef> blocks, const AcquireOptions& options);
  Result<Staging> AllocateStaging(std::uint64_t bytes, std::int64_t deadline_us);
  Ticket<WriteResult> Write(const Namespace& ns, std::span<const BlockWrite> blocks,
                            const WriteOptions& options);
  Ticket<std::uint32_t> Publish(const Namespace& ns, std::span<const PutId> puts, std::int64_t deadline_us);
  Ticket<std::uint32_t> Abandon(const Namespace& ns, std::span<const PutId> puts, std::int64_t deadline_us);
  Ticket<std::uint32_t> Touch(const Namespace& ns, std::span<const BlockKey> keys, std::int64_t deadline_us,
                              std::string_view conversation);
  Ticket<std::uint64_t> Drop(const Namespace& ns, std::span<const BlockKey> keys, std::int64_t deadline_us);
  Ticket<std::uint64_t> EndConversation(const Namespace& ns, std::string_view conversation,
                                        std::int64_t deadline_us);
  Ticket<std::uint64_t> DropNamespace(Namespace& ns, std::int64_t deadline_us);
  Status Report(const EngineReport& report);
  Result<std::string> StatusJson(std::int64_t deadline_us);
  Result<std::uint32_t> SwitchReads(std::string_view target, bool on, std::int64_t deadline_us);
  Result<std::uint32_t> SwitchWrites(std::string_view target, bool on, std::int64_t deadline_us);
  Result<std::uint32_t> SwitchEngineReads(std::string_view engine, bool on, std::int64_t deadline_us);
  Result<std::uint32_t> SwitchEngineWrites(std::string_view engine, bool on, std::int64_t deadline_us);
  Result<std::uint64_t> DropNamed(std::string_view target, std::int64_t deadline_us);
  Result<std::uint64_t> ResizeMemory(std::uint64_t bytes, std::int64_t deadline_us);
  Status Drain(const DrainOptions& options, std::int64_t deadline_us);
  Result<std::string> NamespacesJson(std::int64_t deadline_us);
  Result<std::string> ConfigurationJson(std::int64_t deadline_us);
  Result<std::string> CellJson(std::int64_t deadline_us);
  Result<std::string> HoldersJson(const Namespace& ns, std::span<const BlockKey> chain,
                                  std::int64_t deadline_us);
  Result<std::string> ExplanationJson(const Namespace& ns, std::span<const BlockKey> chain,
                                      std::int64_t deadline_us);
  Status TakeOutDevice(std::string_view path, std::int64_t deadline_us);
  Status BringBackDevice(std::string_view path, std::int64_t deadline_us);

  // How many bytes part 0 of a block in memory has, proved as a read's are, for Get at a prompt. kMiss as for
  // Read.
  Result<std::uint64_t> FirstPartBytes(const Namespace& ns, const BlockKey& key, std::uint16_t group);

  // Whether the node has a tier below memory, so that what is not in memory may be there.
  bool has_lower() const;

  OwnerToken owner() const;
  std::size_t Poll(std::vector<std::uint64_t>* ready);
  int event_fd() const;

 private:
  struct Parts;
  // A call with a name, or none, and what it says in its answer. The deadline counts from then on.
  Result<std::uint64_t> AskOfNamed(std::string_view target, const Request& asked, std::int64_t deadline_us,
                                   std::int64_t from_ns);
  Result<std::uint32_t> Turn(std::uint64_t what, std::string_view target, bool on, std::int64_t deadline_us);
  Result<std::uint32_t> TurnEngine(std::uint64_t what, std::string_view engine, bool on,
                                   std::int64_t deadline_us);
  Status ChangeDevice(std::string_view path, std::uint64_t what, std::int64_t deadline_us);
  // The members of a list of the node's (wire::kNamespaceList ...), as an array named `name`.
  Result<std::string> ListJson(std::string_view name, std::uint64_t what, std::int64_t deadline_us);
  // The node's answer to a question about a chain (wire::kHolders ...).
  Result<std::string> ChainJson(std::uint64_t what, const Namespace& ns, std::span<const BlockKey> chain,
                                std::int64_t deadline_us);
  explicit Client(std::unique_ptr<Parts> parts);
  static Result<std::unique_ptr<Client>> Over(Result<Connection> connection, const ConnectOptions& options,
                                              std::int64_t began_ns, NearNode near);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cistern::client

// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "client/conversation_number.h"
#include "client/parts.h"
#include "wire/engine_name.h"
#include "wire/spec_wire.h"

namespace cistern::client {

namespace {

constexpr std::size_t kStatusBytes = 64u << 10;
// A page of a list: the longest member, a namespace whose fields are all escapes, fits.
constexpr std::size_t kListBytes = wire::kArgumentBytes / 2;

Status CheckCall(const Namespace& ns, std::int64_t deadline_us) {
  Status status = CheckNamespace(ns);
  return status.ok() ? CheckDeadline(deadline_us) : status;
}

template <class Count>
Result<Count> CountOf(const Call&, const wire::Completion& completion) {
  return static_cast<Count>(completion.a);
}

// A call whose arguments are a list of `what` and whose answer is a count.
template <class Count, class T>
Ticket<Count> AskForEach(Channel& channel, wire::Op op, const Namespace& ns, std::string_view what,
                         std::span<const T> list, std::int64_t deadline_us, std::uint64_t conversation = 0) {
  Status status = CheckCall(ns, deadline_us);
  if (status.ok()) status = CheckCount(what, list.size(), wire::kMaxKeysPerCall);
  if (!status.ok()) return Failed<Count>(std::move(status));
  Result<Call> call = channel.Reserve(list.size() * sizeof(ItemOf(T())));
  if (!call) return Failed<Count>(std::move(call.error()));
  ItemWriter items(call->room());
  for (const T& each : list) items.Put(ItemOf(each));
  Request request = RequestFor(op, ns, deadline_us);
  request.b = conversation;
  return Ask<Count>(std::move(*call), request, items.used(), CountOf<Count>);
}

Status CheckName(const ConnectOptions& options) {
  return options.engine_name.empty() ? Status() : wire::CheckEngineName(options.engine_name);
}

}  // namespace

Status WaitsForParent(const BlockKey& key, const std::optional<BlockKey>& parent) {
  return Status(Code::kMiss, Text("block ", key.ToHex(), " waits for its parent ",
                                  parent ? parent->ToHex() : std::string("none"),
                                  ", which is not here; put the parent within 30 s"));
}

Client::Client(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Client::~Client() { parts_->channel->Close(); }

Result<std::unique_ptr<Client>> Client::Connect(const ConnectOptions& options) {
  if (Status status = CheckName(options); !status.ok()) return Error(std::move(status));
  const std::int64_t began_ns = NowNs();
  return Over(ConnectToNode(options), options, began_ns, NearNode());
}

Result<std::unique_ptr<Client>> Client::Connect(int socket, const ConnectOptions& options, NearNode near) {
  Fd end(socket);
  if (Status status = CheckName(options); !status.ok()) return Error(std::move(status));
  const std::int64_t began_ns = NowNs(), deadline_ns = DeadlineNs(options.deadline_us, began_ns);
  return Over(GreetNode(std::move(end), "the node of this process", options, deadline_ns), options, began_ns,
              std::move(near));
}

Result<std::unique_ptr<Client>> Client::Over(Result<Connection> connection, const ConnectOptions& options,
                                             std::int64_t began_ns, NearNode near) {
  if (!connection) return Error(std::move(connection.error()));
  Result<std::shared_ptr<Channel>> channel = Channel::Open(std::move(*connection), std::move(near));
  if (!channel) return Error(std::move(channel.error()));
  auto parts = std::make_unique<Parts>();
  parts->channel = std::move(*channel);
  parts->staging = std::make_shared<StagingRoom>(parts->channel);
  if (getrandom(&parts->put_base, sizeof(parts->put_base), 0) != sizeof(parts->put_base))
    return Error(Code::kIoError, Text("getrandom: ", ErrnoText(errno)));
  std::unique_ptr<Client> client(new Client(std::move(parts)));
  // Before anything is asked: what is off for its engine is off for its first call.
  if (!options.engine_name.empty() && client->parts_->channel->knows_engines()) {
    const auto known =
        client->AskOfNamed(options.engine_name, {.op = wire::Op::kIntroduce}, options.deadline_us, began_ns);
    if (!known) return Error(known.error());
  }
  return client;
}

Result<Namespace> Client::Attach(const NamespaceSpec& spec, std::int64_t deadline_us, std::uint32_t flags) {
  if (Status status = CheckDeadline(deadline_us); !status.ok()) return Error(std::move(status));
  NamespaceSpec said = spec;
  if (!parts_->channel->knows_engines()) said.labels.clear();  // such a node knows none of these either
  Result<std::vector<std::byte>> wire = wire::EncodeSpec(said);
  if (!wire) return Error(std::move(wire.error()));
  Result<Call> call = parts_->channel->Reserve(sizeof(wire::AttachArgs) + wire->size());
  if (!call) return Error(std::move(call.error()));
  ItemWriter items(call->room());
  items.Put(wire::AttachArgs{.spec_bytes = static_cast<std::uint32_t>(wire->size()), .flags = flags});
  items.PutBytes(*wire);
  Request request{.op = wire::Op::kAttach, .deadline_ns = DeadlineNs(deadline_us)};
  auto kept = std::make_shared<const NamespaceSpec>(spec);
  auto decode = [kept](const Call& answered, const wire::Completion& completion) -> Result<Namespace> {
    std::span<const std::byte> bytes = answered.reply(completion);
    if (bytes.size() != sizeof(wire::AttachReply))
      return Error(Code::kMismatch, Text("an attach reply of ", bytes.size(), " bytes"));
    const auto reply = LoadAt<wire::AttachReply>(bytes.data(), 0);
    return Namespace(reply.slot, reply.incarnation, kept);
  };
  return Ask<Namespace>(std::move(*call), request, items.used(), std::move(decode)).Wait();
}

Ticket<std::uint32_t> Client::Publish(const Namespace& ns, std::span<const PutId> puts,
                                      std::int64_t deadline_us) {
  return AskForEach<std::uint32_t>(*parts_->channel, wire::Op::kPublish, ns, "put ids", puts, deadline_us);
}

Ticket<std::uint32_t> Client::Abandon(const Namespace& ns, std::span<const PutId> puts,
                                      std::int64_t deadline_us) {
  return AskForEach<std::uint32_t>(*parts_->channel, wire::Op::kAbandon, ns, "put ids", puts, deadline_us);
}

Ticket<std::uint32_t> Client::Touch(const Namespace& ns, std::span<const BlockKey> keys,
                                    std::int64_t deadline_us, std::string_view conversation) {
  Result<std::uint64_t> number = ConversationNumber(conversation);
  if (!number) return Failed<std::uint32_t>(std::move(number.error()));
  return AskForEach<std::uint32_t>(*parts_->channel, wire::Op::kTouch, ns, "keys", keys, deadline_us,
                                   *number);
}

Ticket<std::uint64_t> Client::EndConversation(const Namespace& ns, std::string_view conversation,
                                              std::int64_t deadline_us) {
  Result<std::uint64_t> number = ConversationNumber(conversation);
  if (!number) return Failed<std::uint64_t>(std::move(number.error()));
  if (*number == 0) return Failed<std::uint64_t>(Status(Code::kInvalid, "a conversation without a name"));
  return AskForEach<std::uint64_t>(*parts_->channel, wire::Op::kEndConversation, ns, "keys",
                                   std::span<const BlockKey>(), deadline_us, *number);
}

Ticket<std::uint64_t> Client::Drop(const Namespace& ns, std::span<const BlockKey> keys,
                                   std::int64_t deadline_us) {
  return AskForEach<std::uint64_t>(*parts_->channel, wire::Op::kDrop, ns, "keys", keys, deadline_us);
}

// Waits, because `ns` has to be the new one when the ticket is used and may be gone by then.
Ticket<std::uint64_t> Client::DropNamespace(Namespace& ns, std::int64_t deadline_us) {
  if (Status status = CheckCall(ns, deadline_us); !status.ok())
    return Failed<std::uint64_t>(std::move(status));
  Result<Call> call = parts_->channel->Reserve(0);
  if (!call) return Failed<std::uint64_t>(std::move(call.error()));
  Status submitted = call->Submit(RequestFor(wire::Op::kDropNamespace, ns, deadline_us), 0);
  if (!submitted.ok()) return Failed<std::uint64_t>(std::move(submitted));
  Result<wire::Completion> completion = call->Answer();
  if (!completion) return Failed<std::uint64_t>(std::move(completion.error()));
  ns = Namespace(ns.slot(), completion->b, std::make_shared<const NamespaceSpec>(ns.spec()));
  return Ticket<std::uint64_t>(Result<std::uint64_t>(completion->a));
}

Status Client::Report(const EngineReport& report) {
  Status status = parts_->channel->Check();
  if (status.ok()) parts_->channel->NoteEngine(report);
  return status;
}

Result<std::string> Client::StatusJson(std::int64_t deadline_us) {
  if (Status status = CheckDeadline(deadline_us); !status.ok()) return Error(std::move(status));
  const std::int64_t deadline_ns = DeadlineNs(deadline_us);
  std::size_t room = kStatusBytes;
  for (;;) {
    Result<Call> call = parts_->channel->Reserve(room);
    if (!call) return Error(std::move(call.error()));
    Status submitted = call->Submit(Request{.op = wire::Op::kStatus, .deadline_ns = deadline_ns}, 0);
    if (!submitted.ok()) return Error(std::move(submitted));
    Result<wire::Completion> completion = call->Wait();
    if (!completion) return Error(std::move(completion.error()));
    if (completion->code == static_cast<std::uint16_t>(Code::kOk)) {
      std::span<const std::byte> text = call->reply(*completion);
      return std::string(reinterpret_cast<const char*>(text.data()), text.size());
    }
    // It says how much room it wants; a state that grows meanwhile gets some more.
    if (completion->a <= room || completion->a > wire::kArgumentBytes / 2)
      return Error(call->Why(*completion));
    room = completion->a + completion->a / 4;
  }
}

Result<std::string> Client::ListJson(std::string_view name, std::uint64_t what, std::int64_t deadline_us) {
  if (Status status = CheckDeadline(deadline_us); !status.ok()) return Error(std::move(status));
  const std::int64_t deadline_ns = DeadlineNs(deadline_us);
  std::string all = Text("{\"", name, "\":[");
  for (std::uint64_t from = 0;;) {
    Result<Call> call = parts_->channel->Reserve(kListBytes);
    if (!call) return Error(std::move(call.error()));
    Status submitted =
        call->Submit(Request{.op = wire::Op::kStatus, .a = what, .b = from, .deadline_ns = deadline_ns}, 0);
    if (!submitted.ok()) return Error(std::move(submitted));
    Result<wire::Completion> completion = call->Answer();
    if (!completion) return Error(std::move(completion.error()));
    // A node of before there were lists answers with its status.
    if (completion->b <= from) {
      return Error(Code::kMismatch, Text("the node is of an earlier version, which has no list of ", name,
                                         "; bring it up to this one's release"));
    }
    const std::span<const std::byte> text = call->reply(*completion);
    if (from > 0 && !text.empty()) all += ',';
    all.append(reinterpret_cast<const char*>(text.data()), text.size());
    if (completion->b == wire::kReportEnds) return all + "]}";
    from = completion->b;
  }
}

Result<std::string> Client::NamespacesJson(std::int64_t deadline_us) {
  return ListJson("namespaces", wire::kNamespaceList, deadline_us);
}

Result<std::string> Client::ConfigurationJson(std::int64_t deadline_us) {
  return ListJson("settings", wire::kConfigurationList, deadline_us);
}

Result<std::string> Client::CellJson(std::int64_t deadline_us) {
  return ListJson("members", wire::kCellList, deadline_us);
}

Result<std::string> Client::ChainJson(std::uint64_t what, const Namespace& ns,
                                      std::span<const BlockKey> chain, std::int64_t deadline_us) {
  Status status = CheckCall(ns, deadline_us);
  if (status.ok()) status = CheckCount("keys", chain.size(), wire::kMaxKeysPerCall);
  if (!status.ok()) return Error(std::move(status));
  Result<Call> call = parts_->channel->Reserve(std::max(kStatusBytes, chain.size() * sizeof(wire::KeyItem)));
  if (!call) return Error(std::move(call.error()));
  ItemWriter items(call->room());
  for (const BlockKey& key : chain) items.Put(ItemOf(key));
  Request request = RequestFor(wire::Op::kStatus, ns, deadline_us);
  request.a = what;
  if (Status submitted = call->Submit(request, items.used()); !submitted.ok())
    return Error(std::move(submitted));
  Result<wire::Completion> completion = call->Answer();
  if (!completion) return Error(std::move(completion.error()));
  // A node of before there were lists answers with its status.
  if (completion->b != wire::kReportEnds) {
    return Error(Code::kMismatch,
                 "the node is of an earlier version, which knows nothing of chains in a cell; bring it up to "
                 "this one's release");
  }
  const std::span<const std::byte> text = call->reply(*completion);
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

Result<std::string> Client::HoldersJson(const Namespace& ns, std::span<const BlockKey> chain,
                                        std::int64_t deadline_us) {
  return ChainJson(wire::kHolders, ns, chain, deadline_us);
}

Result<std::string> Client::ExplanationJson(const Namespace& ns, std::span<const BlockKey> chain,
                                            std::int64_t deadline_us) {
  return ChainJson(wire::kExplanation, ns, chain, deadline_us);
}

Status Client::ChangeDevice(std::string_view path, std::uint64_t what, std::int64_t deadline_us) {
  if (Status status = CheckDeadline(deadline_us); !status.ok()) return status;
  if (path.empty() || path.size() > wire::kMaxPathBytes) {
    return Status(Code::kInvalid,
                  Text("device: a path of ", path.size(), " bytes: paths have 1 to ", wire::kMaxPathBytes));
  }
  Result<Call> call = parts_->channel->Reserve(std::max<std::size_t>(path.size(), wire::kMaxReplyMessage));
  if (!call) return call.error();
  ItemWriter items(call->room());
  items.PutBytes(std::as_bytes(std::span(path)));
  const Request request{.op = wire::Op::kDevice, .a = what, .deadline_ns = DeadlineNs(deadline_us)};
  if (Status submitted = call->Submit(request, items.used()); !submitted.ok()) return submitted;
  const Result<wire::Completion> completion = call->Answer();
  return completion ? Status() : completion.error();
}

Result<std::uint64_t> Client::AskOfNamed(std::string_view target, const Request& asked,
                                         std::int64_t deadline_us, std::int64_t from_ns) {
  if (Status status = CheckDeadline(deadline_us); !status.ok()) return Error(std::move(status));
  if (target.size() > wire::kMaxTargetBytes) {
    return Error(Code::kInvalid,
                 Text(target.size(), " bytes of a name: names have at most ", wire::kMaxTargetBytes));
  }
  Result<Call> call = parts_->channel->Reserve(wire::kMaxReplyMessage);
  if (!call) return Error(std::move(call.error()));
  ItemWriter items(call->room());
  items.PutBytes(std::as_bytes(std::span(target)));
  Request request = asked;
  request.deadline_ns = DeadlineNs(deadline_us, from_ns);
  return Ask<std::uint64_t>(std::move(*call), request, items.used(), CountOf<std::uint64_t>).Wait();
}

Result<std::uint32_t> Client::Turn(std::uint64_t what, std::string_view target, bool on,
                                   std::int64_t deadline_us) {
  const Result<std::uint64_t> turned =
      AskOfNamed(target, {.op = wire::Op::kSwitch, .a = what, .b = on ? 1u : 0u}, deadline_us, NowNs());
  if (!turned) return Error(turned.error());
  return static_cast<std::uint32_t>(*turned);
}

Result<std::uint32_t> Client::TurnEngine(std::uint64_t what, std::string_view engine, bool on,
                                         std::int64_t deadline_us) {
  if (Status status = wire::CheckEngineName(engine); !status.ok()) return Error(std::move(status));
  if (!parts_->channel->knows_engines()) {
    return Error(
        Code::kMismatch,
        "the node is of an earlier version, which knows no engines; bring it up to this one's release, "
        "or switch a namespace");
  }
  const Result<std::uint64_t> turned =
      AskOfNamed(engine, {.op = wire::Op::kSwitch, .flags = wire::kOfEngine, .a = what, .b = on ? 1u : 0u},
                 deadline_us, NowNs());
  if (!turned) return Error(turned.error());
  return static_cast<std::uint32_t>(*turned);
}

Result<std::uint64_t> Client::DropNamed(std::string_view target, std::int64_t deadline_us) {
  return AskOfNamed(target, {.op = wire::Op::kDropNamed}, deadline_us, NowNs());
}

Result<std::uint32_t> Client::SwitchReads(std::string_view target, bool on, std::int64_t deadline_us) {
  return Turn(wire::kReads, target, on, deadline_us);
}

Result<std::uint32_t> Client::SwitchWrites(std::string_view target, bool on, std::int64_t deadline_us) {
  return Turn(wire::kWrites, target, on, deadline_us);
}

Result<std::uint32_t> Client::SwitchEngineReads(std::string_view engine, bool on, std::int64_t deadline_us) {
  return TurnEngine(wire::kReads, engine, on, deadline_us);
}

Result<std::uint32_t> Client::SwitchEngineWrites(std::string_view engine, bool on, std::int64_t deadline_us) {
  return TurnEngine(wire::kWrites, engine, on, deadline_us);
}

Result<std::uint64_t> Client::ResizeMemory(std::uint64_t bytes, std::int64_t deadline_us) {
  return AskOfNamed({}, {.op = wire::Op::kMemory, .a = bytes}, deadline_us, NowNs());
}

Status Client::Drain(const DrainOptions& options, std::int64_t deadline_us) {
  const std::uint64_t what = !options.on           ? wire::kServe
                             : options.flash_goes  ? wire::kForLeaving
                             : options.memory_goes ? wire::kForReboot
                                                   : wire::kForUpgrade;
  const Result<std::uint64_t> begun =
      AskOfNamed({},
                 {.op = wire::Op::kDrain,
                  .flags = options.then_stop ? wire::kThenStop : std::uint16_t{0},
                  .a = what,
                  .b = static_cast<std::uint64_t>(std::max<std::int64_t>(options.within_us, 0))},
                 deadline_us, NowNs());
  return begun ? Status() : begun.error();
}

Status Client::TakeOutDevice(std::string_view path, std::int64_t deadline_us) {
  return ChangeDevice(path, wire::kTakeOut, deadline_us);
}

Status Client::BringBackDevice(std::string_view path, std::int64_t deadline_us) {
  return ChangeDevice(path, wire::kBringBack, deadline_us);
}

Result<Staging> Client::AllocateStaging(std::uint64_t bytes, std::int64_t deadline_us) {
  if (Status status = CheckDeadline(deadline_us); !status.ok()) return Error(std::move(status));
  Result<std::shared_ptr<StagingPiece>> piece = parts_->staging->Take(bytes, DeadlineNs(deadline_us));
  if (!piece) return Error(std::move(piece.error()));
  std::byte* data = (*piece)->bytes().data();
  const std::uint64_t offset = std::uint64_t{(*piece)->area()} << 48 | (*piece)->offset();
  return Staging(std::move(*piece), data, bytes, offset);
}

OwnerToken Client::owner() const { return parts_->channel->connection().welcome.owner; }
std::size_t Client::Poll(std::vector<std::uint64_t>* ready) { return parts_->channel->Poll(ready); }
int Client::event_fd() const { return parts_->channel->event_fd(); }

}  // namespace cistern::client

// SPDX-License-Identifier: Apache-2.0
#include "node/cell.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>
#include <utility>

#include "base/event.h"
#include "base/format.h"
#include "base/limits.h"
#include "base/nearest.h"
#include "etcd/gateway.h"
#include "node/cell_options.h"
#include "node/inquiry.h"
#include "store/drain.h"

namespace cistern::node {
namespace {

// Of this host, until it starts anew.
std::array<std::byte, 16> BootId() {
  std::array<std::byte, 16> id{};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  std::erase(text, '-');
  for (std::size_t i = 0; i < id.size() && 2 * i + 1 < text.size(); ++i)
    id[i] = static_cast<std::byte>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  return id;
}

// Whether another attempt may succeed by itself at once: the cell changed while the member joined.
bool IsPassing(const Status& why) { return why.code() == Code::kLapsed || why.code() == Code::kOk; }

}  // namespace

Cell::Cell(const Parts& parts, const NodeOptions& options, std::vector<net::CellKey> keys)
    : parts_(parts),
      loop_(parts.loop),
      store_(parts.store),
      log_(parts.log),
      keys_(std::move(keys)),
      peers_(parts.lanes.Make(server::kPeersWeight)),
      tcp_(parts.loop),
      names_(parts.loop.executor(), parts.store, options.tenant),
      local_(parts.loop.executor(), parts.store, names_),
      tasks_(parts.loop.executor()) {}

Cell::~Cell() {
  tasks_.Drop();
  peers_.End();
}

Result<std::unique_ptr<Cell>> Cell::Start(const Parts& parts, const NodeOptions& options,
                                          std::vector<net::CellKey> keys) {
  std::unique_ptr<Cell> cell(new Cell(parts, options, std::move(keys)));
  if (Status files = CheckEtcdFiles(options); !files.ok()) return Error(std::move(files));
  auto etcd = etcd::OpenGateway(parts.loop, EtcdOptions(options));
  if (!etcd) return Error(etcd.error().code(), Text("cell: ", etcd.error().message()));
  cell->etcd_ = std::move(*etcd);
  net::Network* network = &cell->tcp_;
  auto tls = CellTls(options, cell->keys_);
  if (!tls) return Error(tls.error());
  cell->context_ = std::move(*tls);
  if (cell->context_ && cell->context_->signs_slowly()) {
    parts.log.Log(LogLevel::kWarning, "cell: cell_certificate_key: ", ShownPath(options.cell_certificate_key),
                  " is neither of P-256 nor Ed25519, and signs so slowly that whoever connects holds up the "
                  "node; a later release refuses it: make another (docs/cell.md)");
  }
  if (cell->context_) network = &cell->tls_.emplace(cell->tcp_, *cell->context_);
  mesh::MemberOptions member;
  member.id = options.member;
  member.prefix = CellPrefix(options);
  member.listen = CellListens(options);
  member.address = options.cell_address;
  member.zone = options.zone;
  member.role = options.cell_role;
  member.boot_id = BootId();
  member.process_number = std::max<std::uint64_t>(1, parts.random());
  member.cell_keys = cell->keys_;
  member.etcd_is_ours = options.cell_compacts;
  member.boot = &parts.boot;
  member.answers = &cell->peers_;
  auto started = mesh::Member::Start(*cell->etcd_, *network, cell->local_, std::move(member));
  if (!started) return Error(CannotListen(options, started.error()));
  cell->member_ = std::move(*started);
  cell->agreed_names_.emplace(*cell->etcd_, CellPrefix(options), cell->member_->state());
  if (Status status = cell->Share(options, parts.random()); !status.ok()) return Error(std::move(status));
  return cell;
}

Status Cell::Share(const NodeOptions& options, std::uint64_t seed) {
  const std::string at = RailAddress(member_->options().listen);
  const std::size_t threads = options.cell_rail_threads > 0
                                  ? options.cell_rail_threads
                                  : mesh::RailThreads::CountFor(std::thread::hardware_concurrency());
  auto rails = mesh::RailThreads::Start(
      {loop_, parts_.clock, store_, parts_.reader, member_->links(), context_ ? &*context_ : nullptr,
       parts_.rails, RdmaOptions(options), options.cell_bandwidth, threads, &peers_},
      at);
  if (!rails) return CannotListenForRails(options, rails.error());
  rails_ = std::move(*rails);
  if (rails_->fabric() != nullptr) {
    log_.Log(LogLevel::kInfo, "cell: blocks are read over ", rails_->fabric_name(),
             " where the other side has the like, not encrypted");
  } else if (!rails_->no_fabric().ok()) {
    log_.Log(LogLevel::kWarning,
             "cell: blocks are read over TCP, not by RDMA: ", rails_->no_fabric().message());
  }
  sharing_ = std::make_unique<mesh::Sharing>(
      mesh::Sharing::Parts{executor(), parts_.clock, store_, *member_, names_, member_->links(), *rails_,
                           parts_.reader.memory_bytes(), seed, options.cell_bandwidth,
                           member_->options().process_number, options.cell_role});
  sharing_->SetCopies(options.cell_copies);
  member_->SetListener(&*sharing_, RailAddress(member_->options().address));
  sharing_->Start();
  tasks_.Spawn(Publish());
  tasks_.Spawn(PublishNames());
  tasks_.Spawn(ClaimNames());
  return Status();
}

Task<void> Cell::Publish() {
  for (;;) {
    store_.SetTerm(member_->valid_until());
    co_await names_.Refresh();
    rails_->Publish(member_->Answering(), names_.Served());
    ForgetGone();
    (void)co_await member_->Changed(executor().Now().PlusUs(kPublishUs));
  }
}

Task<void> Cell::PublishNames() {
  for (;;) {
    co_await names_.changed().Wait();
    rails_->Publish(member_->Answering(), names_.Served());
  }
}

Task<Status> Cell::Agree(const NamespaceSpec& spec, Instant deadline) {
  // What is no list at all the store says.
  if (!catalog::NamespaceTable::Validate(spec).ok()) co_return Status();
  const catalog::NamespaceEntry entry = catalog::NamespaceTable().Merged(spec, 1);
  const Instant until = std::min(deadline, executor().Now().PlusUs(mesh::CellLimits::kCallUs));
  ++attaching_[spec.name];
  Status status = co_await agreed_names_->Claim(mesh::NamedListOf(names_.tenant(), spec.name, entry), until);
  if (status.code() != Code::kMismatch) co_return Status();
  if (--attaching_[spec.name] == 0) attaching_.erase(spec.name);
  co_return status;
}

Task<void> Cell::Agreed(const NamespaceSpec& spec, bool attached, Instant deadline) {
  const auto attaching = attaching_.find(spec.name);
  if (attaching == attaching_.end()) co_return;
  if (--attaching->second == 0) attaching_.erase(attaching);
  if (attached || attaching_.contains(spec.name) || HasName(spec.name)) co_return;
  const catalog::NamespaceEntry entry = catalog::NamespaceTable().Merged(spec, 1);
  const Instant until = std::min(deadline, executor().Now().PlusUs(mesh::CellLimits::kCallUs));
  co_await agreed_names_->Withdraw(mesh::NamedListOf(names_.tenant(), spec.name, entry), until);
}

bool Cell::HasName(const std::string& name) const {
  for (std::uint32_t slot = 0; slot < store_.namespace_slots(); ++slot) {
    const catalog::NamespaceEntry* entry = store_.NamespaceAt(slot);
    if (entry != nullptr && std::ranges::find(entry->names, name) != entry->names.end()) return true;
  }
  return false;
}

// Of what the node had before it joined, or was attached when etcd could not be asked.
Task<void> Cell::ClaimNames() {
  for (std::uint64_t round = 0;; ++round) {
    std::map<std::string, std::string> conflicts;
    bool asked = member_->joined();
    for (std::uint32_t slot = 0; asked && slot < store_.namespace_slots(); ++slot) {
      const catalog::NamespaceEntry* entry = store_.NamespaceAt(slot);
      const std::vector<std::string> names = entry == nullptr ? std::vector<std::string>() : entry->names;
      for (const std::string& name : names) {
        co_await Yield();  // a list has up to 64 KiB
        entry = store_.NamespaceAt(slot);
        // Meanwhile the slot may be another's.
        if (entry == nullptr || std::ranges::find(entry->names, name) == entry->names.end()) break;
        mesh::NamedList list = mesh::NamedListOf(names_.tenant(), name, *entry);
        Status status;
        if (agreed_names_->Known(list) != nullptr) continue;
        if (const auto was = conflicts_.find(name); was != conflicts_.end() && round % kConflictRounds != 0) {
          status = Status(Code::kMismatch, was->second);
        } else {
          status = co_await agreed_names_->Claim(std::move(list),
                                                 executor().Now().PlusUs(mesh::CellLimits::kCallUs));
        }
        if (status.code() == Code::kMismatch) {
          conflicts[name] = status.message();
        } else if (!status.ok()) {
          asked = false;
          break;
        }
      }
    }
    if (asked) {
      co_await agreed_names_->WithdrawRest(executor().Now().PlusUs(mesh::CellLimits::kCallUs));
      for (const auto& [name, why] : conflicts) {
        if (!conflicts_.contains(name))
          log_.Log(LogLevel::kWarning, "cell: ", why, "; what this node has of it goes by its own list");
      }
      conflicts_ = std::move(conflicts);
    }
    co_await SleepUntil(executor().Now().PlusUs(kNamesUs));
  }
}

void Cell::NoteMembers() {
  const Instant now = executor().Now();
  const auto& members = member_->state().view.members;
  const auto is_there = [&](std::uint64_t process) {
    return std::ranges::any_of(members,
                               [&](const auto& one) { return one.second.process_number == process; });
  };
  unreached_.KeepOnly(is_there);
  blockless_.KeepOnly(is_there);
  for (const auto& [id, value] : members) {
    const std::uint64_t process = value.process_number;
    if (!member_->joined() || process == member_->options().process_number) continue;
    const bool reached = member_->Reaches(process);
    using Say = LastingTroubles::Say;
    if (const Say say = unreached_.Note(process, !reached, now); say == Say::kTrouble) {
      log_.Log(LogLevel::kWarning, "cell: member ", id, ": ", member_->WhyApart(id),
               "; without a connection its drops wait for it, and neither reads what the other has");
    } else if (say == Say::kOver) {
      log_.Log(LogLevel::kInfo, "cell: member ", id, " is reached again");
    }
    const Status why = rails_->WhyNone(process);
    if (const Say say = blockless_.Note(process, reached && !why.ok(), now); say == Say::kTrouble) {
      log_.Log(LogLevel::kWarning, "cell: member ", id,
               " is reached, but no block can be read from it: ", why.message(),
               "; blocks are served at the port behind its cell_address");
    } else if (say == Say::kOver && reached) {
      log_.Log(LogLevel::kInfo, "cell: blocks are read from member ", id, " again");
    }
  }
}

void Cell::NoteDiscards() {
  const mesh::LocalBlockStore::Counters& counters = local_.counters();
  const std::uint64_t blocks =
      counters.discarded.value() - std::exchange(discarded_, counters.discarded.value());
  if (blocks > 0)
    log_.Log(
        LogLevel::kWarning, "cell: ", blocks,
        " blocks, all that was shared, are given up, and will be computed anew: etcd is another one, or was "
        "restored or told of a new history, or this node was away for longer than drops are kept");
}

void Cell::ForgetGone() {
  std::set<std::uint64_t> now;
  for (const auto& [id, value] : member_->state().view.members) now.insert(value.process_number);
  for (const std::uint64_t peer : known_) {
    // Its membership alone may have lapsed: then it comes back as the same start, and says nothing anew.
    if (member_->Reaches(peer)) now.insert(peer);
    if (now.contains(peer)) continue;
    sharing_->Forget(peer);
    rails_->Forget(peer);
  }
  known_ = std::move(now);
}

Task<Status> Cell::AwaitJoin(Instant deadline) {
  const std::uint64_t attempts = member_->failed_joins();
  while (!member_->joined() && !member_->ended()) {
    if (member_->failed_joins() != attempts && !IsPassing(member_->why())) break;
    const Instant until = member_->reading() ? executor().Now().PlusUs(kReadingUs) : deadline;
    const Status waited = co_await member_->Changed(until);
    if (!waited.ok() && !member_->reading() && executor().Now() >= deadline) break;
  }
  if (member_->ended()) co_return member_->why();
  NoteChanges();
  co_return Status();
}

Task<Result<server::Dropped>> Cell::Drop(const server::DropRequest& request) {
  // In the step of the question: later the slot may be another namespace's.
  auto name = names_.DroppedNameAt(request.slot);
  if (!name)
    co_return Error(Code::kMiss, Text("namespace ", request.slot, ": is not attached, or was dropped"));
  mesh::CellDrop drop{.what = request.what, .name = std::move(*name), .conversation = request.conversation};
  mesh::LocalBlockStore::Count count(local_, drop);
  drop.keys.reserve(request.keys.size());
  while (drop.keys.size() < request.keys.size()) {
    if (!drop.keys.empty()) co_await Yield();
    const auto rest = request.keys.subspan(drop.keys.size());
    const auto some = rest.first(std::min<std::size_t>(rest.size(), kStepTouches));
    count.Add(some);
    drop.keys.insert(drop.keys.end(), some.begin(), some.end());
    executor().AddWork(some.size());
  }
  const Instant now = executor().Now();
  const std::int64_t left_us = request.deadline.UsSince(now);
  const Instant deadline = now.PlusUs(std::min(left_us - std::min(left_us / 8, kAnswerUs), kDropUs));
  const auto receipt = co_await member_->Drop(std::move(drop), mesh::DropWait::kApplied, deadline);
  if (!receipt) {
    const Code code = receipt.error().code();
    const bool unreached =
        code == Code::kGone || code == Code::kDenied || code == Code::kMismatch || code == Code::kLapsed;
    co_return Error(unreached ? Code::kUnavailable : code, std::string(receipt.error().message()));
  }
  const catalog::NamespaceEntry* entry = store_.NamespaceAt(request.slot);
  co_return server::Dropped{count.blocks(), entry == nullptr ? 0 : entry->incarnation};
}

Task<Result<std::string>> Cell::Inquire(const server::ChainQuestion& question) {
  co_await names_.Refresh();
  const Inquiry inquiry{executor(), store_, *member_, *sharing_, names_};
  auto answer = question.explain ? ExplainText(inquiry, question) : HoldersText(inquiry, question);
  co_return co_await answer;
}

void Cell::NoteChanges() {
  NoteMembers();
  NoteDiscards();
  const bool joined = member_->joined(), drops = member_->why().ok();
  std::string state = !joined ? std::string(member_->why().message())
                      : drops ? "joined"
                              : "drops are refused";
  if (state == said_) return;
  said_ = std::move(state);
  if (joined && !drops) {
    log_.Log(LogLevel::kWarning, "cell: drops are refused, and all else goes on: ", member_->why().message());
  } else if (joined) {
    log_.Log(LogLevel::kInfo, "cell: member ", member_->options().id, " has joined, ",
             member_->state().view.members.size(), " members, history ", Hex(member_->state().history));
  } else {
    log_.Log(member_->ended() ? LogLevel::kError : LogLevel::kWarning,
             "cell: the node goes on alone: ", said_);
  }
}

Task<void> Cell::Leave(std::int64_t us) {
  tasks_.Drop();
  store_.drain().SetHandOver(nullptr);
  member_->SetListener(nullptr);
  EndReads();
  co_await sharing_->Close();
  co_await rails_->Close();
  // Before the others hear that it leaves: they wait for its acknowledgements no longer.
  store_.SetTerm({});
  co_await member_->Leave(executor().Now().PlusUs(us));
}

}  // namespace cistern::node

// SPDX-License-Identifier: Apache-2.0
// Promises 1 and 7 and R10 against what happens to a node's files between two lives: a real cisternd puts,
// drops and expires, is killed or ended, its journal, memory and flash are damaged, exchanged or set back in
// one of the ways of damage.h, and it starts again. Each key is then a bit-exact hit or a miss, what was
// dropped stays away, and where something is gone its log says so. A start that is refused by name is helped
// as the message says.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "base/random.h"
#include "base/random_bytes.h"
#include "cistern/cistern.h"
#include "command_line.h"
#include "daemon.h"
#include "damage.h"

namespace cistern {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPatienceUs = 120'000'000;
constexpr std::uint64_t kChains = 10, kChainBlocks = 4;
constexpr std::uint64_t kBlockBytes = 32u << 10;
constexpr std::uint64_t kMortal = 500, kMortals = 4, kFillers = 10'000;  // first of these blocks
constexpr std::uint64_t kFillerBlocks = 80;       // with these flash is written all over
constexpr std::uint64_t kFillerBytes = 1u << 20;  // in chunks of their own
constexpr std::uint32_t kTtlSeconds = 1;
constexpr int kMostHelp = 4;
constexpr std::int64_t kWordUs = 30'000'000;  // between words of how far it is

BlockKey KeyOf(std::uint64_t number) {
  BlockKey key;
  key.length = 32;
  FillRandom(number, std::as_writable_bytes(std::span(key.bytes)));
  return key;
}
// What the block holds that was put as the `version`th of its key.
std::vector<std::byte> BodyOf(std::uint64_t number, std::uint64_t version) {
  std::vector<std::byte> body(number < kFillers ? kBlockBytes : kFillerBytes);
  FillRandom(number * 16 + version, body);
  return body;
}

// A cisternd on files of its own, with what it says.
class NodeProcess {
 public:
  explicit NodeProcess(std::string directory) : directory_(std::move(directory)) {
    fs::create_directories(directory_ + "/flash");
  }
  ~NodeProcess() { End(SIGKILL); }
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  NodeFiles files() const { return {directory_ + "/memory/default", directory_ + "/flash/default"}; }
  // Serves, or has ended: then the error is what it said.
  Result<Store> Start(bool discard_foreign) {
    Exec(discard_foreign);
    const SystemClock clock;
    const Instant until = clock.Now().PlusUs(kPatienceUs);
    ConnectOptions options;
    options.socket = directory_ + "/socket";
    options.deadline_us = kPatienceUs;
    for (;;) {
      Result<Store> store = Store::Connect(options);
      if (store) return store;
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = -1;
        return Error(Code::kGone, Said());
      }
      if (clock.Now() > until) return store;
      poll(nullptr, 0, 1);
    }
  }
  void End(int signal) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Since it was started.
  std::string Said() const {
    std::ifstream file(log());
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string log() const { return directory_ + "/log"; }
  void Exec(bool discard_foreign) {
    std::vector<std::string> words = {DaemonBeside(),
                                      "--memory-dir",
                                      directory_ + "/memory",
                                      "--memory",
                                      "100MiB",
                                      "--socket",
                                      directory_ + "/socket",
                                      "--flash",
                                      directory_ + "/flash:66MiB",
                                      "--log-level",
                                      "warning"};
    if (discard_foreign) words.push_back("--discard-foreign");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int said = open(log().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(said, STDERR_FILENO);
      if (getppid() == parent) execv(argv[0], argv.data());
      _exit(127);
    }
    close(said);
  }

  const std::string directory_;
  pid_t pid_ = -1;
};

// What is known of a key.
struct Known {
  std::uint64_t version = 0;  // that lives; 0: none, it was dropped
  bool mortal = false;
  bool found = false;  // right before the end
};

struct Tally {
  std::uint64_t rounds = 0, looked = 0, hits = 0, misses = 0, wrong = 0, revived = 0, expired_found = 0,
                unsaid = 0, refused = 0, set_back = 0, unanswered = 0;
};

class DamageRound {
 public:
  DamageRound(const std::string& directory, const NodeFiles& other, const DamageWay& way, std::uint64_t seed)
      : directory_(directory), way_(way), random_(seed), node_(directory + "/node"), other_(other) {}
  ~DamageRound() {
    node_.End(SIGKILL);
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }

  Status Run(Tally& tally) {
    Status status = Live();
    if (!status.ok()) return status;
    if (memory_goes_) {
      fs::remove_all(node_.files().memory);
    }
    DamageScene scene{node_.files(), CopyAt("running"), CopyAt("ended"), other_, random_};
    way_.harm(scene);
    const int lives = random_.Chance(0.25) ? 2 : 1;
    for (int life = 0; life < lives; ++life) {
      status = StartAndLook(tally, life == 0);
      if (!status.ok()) return status;
      node_.End(random_.Chance(0.5) ? SIGKILL : SIGTERM);
    }
    ++tally.rounds;
    return Status();
  }

 private:
  NodeFiles CopyAt(const std::string& name) const {
    return {directory_ + "/" + name + "/memory", directory_ + "/" + name + "/flash"};
  }
  void CopyTo(const std::string& name) const {
    const NodeFiles from = node_.files(), to = CopyAt(name);
    fs::create_directories(to.memory);
    fs::create_directories(to.flash);
    for (const auto& [a, b] : {std::pair(from.arena(), to.arena()), std::pair(from.index(), to.index()),
                               std::pair(from.device(), to.device()), std::pair(from.journal(), to.journal()),
                               std::pair(from.copy(), to.copy())}) {
      fs::copy_file(a, b);
    }
  }

  static Result<Namespace> Attach(Store& store, const std::string& name) {
    NamespaceSpec spec;
    spec.fields = {{"name", name}};
    spec.groups = {{.name = "all"}};
    return store.Attach(spec, kPatienceUs);
  }
  Status PutOne(Store& store, const Namespace& ns, std::uint64_t number, std::optional<std::uint64_t> parent,
                std::uint64_t version) {
    std::optional<BlockKey> parent_key;
    if (parent) parent_key = KeyOf(*parent);
    WriteOptions options;
    options.deadline_us = kPatienceUs;
    const bool mortal = number >= kMortal && number < kFillers;
    if (mortal) options.ttl_s = kTtlSeconds;
    Status status = store.Put(ns, KeyOf(number), parent_key, BodyOf(number, version), options);
    ++puts_;
    if (status.ok() && number < kFillers) known_[number] = {version, mortal, false};
    return status;
  }
  static std::uint64_t StatusNumber(Store& store, const std::string& name) {
    Result<std::string> json = store.StatusJson(kPatienceUs);
    const std::size_t at = json ? json->find("\"" + name + "\":") : std::string::npos;
    return at == std::string::npos ? 0 : std::strtoull(json->c_str() + at + name.size() + 3, nullptr, 10);
  }
  // Until all that was put in this life lies on flash, or went from there again.
  static Status AwaitWritten(Store& store, std::uint64_t puts) {
    const SystemClock clock;
    const Instant until = clock.Now().PlusUs(kPatienceUs);
    while (StatusNumber(store, "written_down") < puts) {
      if (clock.Now() > until) return Status(Code::kTooLate, "what was put is not written to flash");
      poll(nullptr, 0, 1);
    }
    return Status();
  }

  // Puts, copies, drops, and its end.
  Status Live() {
    memory_goes_ = way_.memory == DamageWay::Memory::kGoes ||
                   (way_.memory == DamageWay::Memory::kEither && random_.Chance(0.5));
    Result<Store> store = node_.Start(false);
    if (!store) return store.error();
    Result<Namespace> ns = Attach(*store, "a");
    if (!ns) return ns.error();
    for (std::uint64_t chain = 0; chain < kChains; ++chain) {
      for (std::uint64_t i = 0; i < kChainBlocks; ++i) {
        const std::uint64_t n = chain * kChainBlocks + i;
        if (Status s = PutOne(*store, *ns, n, i == 0 ? std::nullopt : std::optional(n - 1), 1); !s.ok())
          return s;
      }
    }
    if (Status s = AwaitWritten(*store, puts_); !s.ok()) return s;
    for (std::uint64_t n = kMortal; n < kMortal + kMortals; ++n) {
      if (Status s = PutOne(*store, *ns, n, std::nullopt, 1); !s.ok()) return s;
    }
    mortal_until_ = clock_.Wall().seconds + kTtlSeconds + 1;
    puts_ -= kMortals;  // these may go before they are written
    if (way_.copies == DamageWay::Copies::kRunning) CopyTo("running");
    if (way_.copies == DamageWay::Copies::kEnded) {
      store = Error(Code::kGone, "ended");
      node_.End(random_.Chance(0.5) ? SIGKILL : SIGTERM);
      CopyTo("ended");
      puts_ = 0;
      store = node_.Start(false);
      if (!store) return store.error();
      ns = Attach(*store, "a");
      if (!ns) return ns.error();
    }
    if (Status s = Drop(*store, *ns); !s.ok()) return s;
    if (Status s = LookBefore(*store, *ns); !s.ok()) return s;
    store = Error(Code::kGone, "ended");
    node_.End(random_.Chance(0.7) ? SIGKILL : SIGTERM);
    return Status();
  }

  Status Drop(Store& store, const Namespace& ns) {
    for (std::uint64_t chain = 0; chain < kChains; chain += 2) {
      const std::uint64_t from = chain * kChainBlocks + random_.Below(kChainBlocks);
      const BlockKey key = KeyOf(from);
      const auto dropped = store.Drop(ns, std::span(&key, 1), kPatienceUs).Wait();
      if (!dropped) return dropped.error();
      const std::uint64_t end = (chain + 1) * kChainBlocks;
      for (std::uint64_t n = from; n < end; ++n) known_[n].version = 0;
      // Some come again, with other bytes.
      if (!random_.Chance(0.5)) continue;
      std::optional<std::uint64_t> parent;
      if (from % kChainBlocks != 0) parent = from - 1;
      if (Status s = PutOne(store, ns, from, parent, 2); !s.ok()) return s;
    }
    // Flash is written all over, so that its regions go round and tombstones end.
    turned_ = random_.Chance(0.5);
    if (turned_) {
      for (std::uint64_t n = kFillers; n < kFillers + kFillerBlocks; ++n) {
        const Status s = PutOne(store, ns, n, std::nullopt, 1);
        if (!s.ok() && s.code() != Code::kBusy) return s;
      }
    }
    if (Result<Namespace> more = Attach(store, "b"); !more) return more.error();
    return turned_ ? Status() : AwaitWritten(store, puts_);
  }

  // A late or busy node is asked until it answers.
  static Result<std::vector<std::byte>> Look(Store& store, const Namespace& ns, std::uint64_t n) {
    const SystemClock clock;
    const Instant until = clock.Now().PlusUs(kPatienceUs);
    ReadOptions options;
    options.deadline_us = kPatienceUs;
    for (;;) {
      auto body = store.Get(ns, KeyOf(n), options);
      const Code code = body ? Code::kOk : body.error().code();
      if ((code != Code::kBusy && code != Code::kTooLate) || clock.Now() > until) return body;
      poll(nullptr, 0, 1);
    }
  }

  Status LookBefore(Store& store, const Namespace& ns) {
    for (auto& [n, known] : known_) {
      const auto body = Look(store, ns, n);
      known.found = body.has_value() && !known.mortal;
      if (!body && body.error().code() != Code::kMiss) return body.error();
      if (known.version == 0 && body)
        return Status(Code::kInvalid, Text("block ", n, " is there after its drop"));
    }
    return Status();
  }

  // The way out that the message names.
  Result<Store> StartWithHelp(Tally& tally) {
    bool discard = false;
    std::set<std::string> helped;
    for (int help = 0;; ++help) {
      Result<Store> store = node_.Start(discard);
      if (store || help == kMostHelp) return store;
      ++tally.refused;
      said_loss_ = true;
      const std::string said(store.error().message());
      const NodeFiles files = node_.files();
      if (said.find("--discard-foreign") != std::string::npos) {
        discard = true;
      } else if (said.find("cistern forget") != std::string::npos) {
        fs::remove(files.arena());
        fs::remove(files.index());
      } else if (said.find("journal") != std::string::npos) {
        fs::remove(files.journal());
        fs::remove(files.copy());
      } else {
        return store;
      }
    }
  }

  Status StartAndLook(Tally& tally, bool first) {
    if (first) said_loss_ = false;
    Result<Store> store = StartWithHelp(tally);
    if (!store) return Status(Code::kGone, Text("it does not start again: ", store.error().message()));
    Result<Namespace> ns = Attach(*store, "a");
    if (!ns) return ns.error();
    std::vector<std::uint64_t> gone;
    for (const auto& [n, known] : known_) {
      const bool late = clock_.Wall().seconds > mortal_until_;
      const auto body = Look(*store, *ns, n);
      ++tally.looked;
      if (!body) {
        tally.unanswered += body.error().code() != Code::kMiss;
        ++tally.misses;
        // A copy has nothing of what was put after it was made.
        const bool copied = way_.copies == DamageWay::Copies::kNone || known.version == 1;
        if (known.found && copied) gone.push_back(n);
        continue;
      }
      ++tally.hits;
      const bool old = *body == BodyOf(n, 1) && known.version != 1;
      if (way_.sets_all_back && old) {
        ++tally.set_back;
      } else if (known.mortal && late) {
        ++tally.expired_found;
        Say(n, "is there though it expired");
      } else if (old) {
        ++tally.revived;
        Say(n, "is there though it was dropped");
      } else if (known.version == 0 || *body != BodyOf(n, known.version)) {
        ++tally.wrong;
        Say(n, "has wrong bytes");
      }
    }
    store = Error(Code::kGone, "ended");
    if (!first) return Status();
    Judge(gone, tally);
    return Status();
  }

  bool Loud() const {
    const std::string said = node_.Said();
    return said.find(" warning ") != std::string::npos || said.find(" error ") != std::string::npos;
  }
  // What is gone was evicted, or the log says why. Where memory went, flash that was written all over has
  // evicted some.
  void Judge(const std::vector<std::uint64_t>& gone, Tally& tally) {
    const bool may_go = (memory_goes_ && turned_) || way_.name == "arena-gone";
    if (gone.empty() || said_loss_ || may_go || Loud()) return;
    // A thread of the node's writes its log, and serves may come first; an end that is asked for waits for
    // it.
    node_.End(SIGTERM);
    if (Loud()) return;
    ++tally.unsaid;
    Say(gone.front(), Text("and ", gone.size() - 1, " others are gone, and nothing says so"));
  }

  void Say(std::uint64_t n, const std::string& what) const {
    std::fprintf(stderr, "%s: block %llu %s (memory %s, flash %s)\n%s", std::string(way_.name).c_str(),
                 static_cast<unsigned long long>(n), what.c_str(), memory_goes_ ? "went" : "stayed",
                 turned_ ? "written all over" : "as it was", node_.Said().c_str());
  }

  const std::string directory_;
  const DamageWay& way_;
  Random random_;
  NodeProcess node_;
  const NodeFiles other_;
  const SystemClock clock_;
  std::map<std::uint64_t, Known> known_;
  std::uint64_t puts_ = 0;
  std::uint64_t mortal_until_ = 0;
  bool memory_goes_ = false, turned_ = false, said_loss_ = false;
};

struct DamageOptions {
  std::uint64_t rounds = 0, first = 1;
  std::string way, dir;
  bool json = false;
};

// A node with the same keys and other bytes, whose files others are given.
Status MakeOther(const std::string& directory) {
  NodeProcess node(directory);
  Result<Store> store = node.Start(false);
  if (!store) return store.error();
  NamespaceSpec spec;
  spec.fields = {{"name", "a"}};
  spec.groups = {{.name = "all"}};
  Result<Namespace> ns = store->Attach(spec, kPatienceUs);
  if (!ns) return ns.error();
  for (std::uint64_t n = 0; n < kChains * kChainBlocks; ++n) {
    if (Status s = store->Put(*ns, KeyOf(n), std::nullopt, BodyOf(n, 9)); !s.ok()) return s;
  }
  store = Error(Code::kGone, "ended");
  node.End(SIGTERM);
  return Status();
}

int Run(int argc, const char* const* argv) {
  DamageOptions options;
  CommandLine line(
      "damage_loop",
      "What a node left is damaged, exchanged or set back before it starts again; every key is a "
      "bit-exact hit or a miss, what was dropped stays away, and what is lost is said.",
      "  damage_loop --rounds 1000 --first 7\n  damage_loop --way journal-older");
  line.Count("--rounds", "rounds, the ways in turn; default: each way once", &options.rounds, 1, 1'000'000);
  line.Count("--first", "seed of the first round; default: 1", &options.first, 0, UINT64_MAX);
  line.Text("--way", "NAME", "this one only", &options.way);
  line.Text("--dir", "DIR", "where its files lie; default: /dev/shm", &options.dir);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  std::vector<const DamageWay*> ways;
  std::string names;
  for (const DamageWay& way : DamageWays()) {
    names += Text(names.empty() ? "" : ", ", way.name);
    if (options.way.empty() || way.name == options.way) ways.push_back(&way);
  }
  if (ways.empty()) {
    return Complain("damage_loop",
                    Status(Code::kInvalid, Text("there is no way ", options.way, "; there are ", names)));
  }
  if (options.rounds == 0) options.rounds = ways.size();
  std::string directory = (options.dir.empty() ? "/dev/shm" : options.dir) + "/cistern-damage-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    return Complain("damage_loop",
                    Status(Code::kIoError, Text(directory, ": no directory can be made there")));
  }
  Tally tally;
  Status status = MakeOther(directory + "/other");
  const NodeFiles other{directory + "/other/memory/default", directory + "/other/flash/default"};
  const SystemClock clock;
  Instant next_word = clock.Now().PlusUs(kWordUs);
  for (std::uint64_t i = 0; status.ok() && i < options.rounds; ++i) {
    if (clock.Now() > next_word) {
      std::fprintf(stderr, "%llu of %llu rounds\n", static_cast<unsigned long long>(i),
                   static_cast<unsigned long long>(options.rounds));
      next_word = clock.Now().PlusUs(kWordUs);
    }
    const DamageWay& way = *ways[i % ways.size()];
    const std::uint64_t seed = options.first + i;
    status = DamageRound(Text(directory, "/", seed), other, way, seed).Run(tally);
    if (!status.ok()) status = Status(status.code(), Text(way.name, ", seed ", seed, ": ", status.message()));
  }
  std::error_code ignored;
  fs::remove_all(directory, ignored);
  std::printf("%s\n",
              Text(tally.rounds, " rounds in ", ways.size(), " ways: ", tally.looked, " blocks looked for, ",
                   tally.hits, " hits, ", tally.misses, " misses, ", tally.refused,
                   " starts refused by name, ", tally.set_back, " set back with all of a backup; wrong ",
                   tally.wrong, ", revived ", tally.revived, ", expired ", tally.expired_found,
                   ", losses that nothing says ", tally.unsaid, ", unanswered ", tally.unanswered)
                  .c_str());
  if (!status.ok()) return Complain("damage_loop", status);
  return tally.wrong + tally.revived + tally.expired_found + tally.unsaid + tally.unanswered == 0
             ? kExitOk
             : kExitFailed;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }

// SPDX-License-Identifier: Apache-2.0
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>

#include "base/fd.h"
#include "base/format.h"
#include "base/utf8.h"
#include "commands.h"
#include "doctor/host_findings.h"
#include "doctor/node_findings.h"
#include "node/start_check.h"
#include "prompt.h"

namespace cistern {
namespace {

namespace json = boost::json;
using doctor::Findings;
using doctor::Verdict;

constexpr std::string_view kName = "cistern doctor";

std::size_t CountOf(const Findings& findings, Verdict verdict) {
  std::size_t count = 0;
  for (const doctor::Finding& finding : findings) count += finding.verdict == verdict ? 1 : 0;
  return count;
}

void PrintJson(const Findings& findings) {
  json::array all;
  for (const doctor::Finding& finding : findings) {
    all.push_back(json::object{{"name", finding.name},
                               {"verdict", doctor::VerdictName(finding.verdict)},
                               {"value", Utf8(finding.value)},
                               {"limit", Utf8(finding.limit)},
                               {"mend", Utf8(finding.mend)}});
  }
  const json::object whole{{"findings", std::move(all)},
                           {"warnings", CountOf(findings, Verdict::kWarning)},
                           {"problems", CountOf(findings, Verdict::kProblem)}};
  std::printf("%s\n", json::serialize(whole).c_str());
}

void Print(const Findings& findings) {
  for (const doctor::Finding& finding : findings) {
    std::printf("%-8s %-12s %s", std::string(doctor::VerdictName(finding.verdict)).c_str(),
                finding.name.c_str(), finding.value.c_str());
    if (finding.verdict != Verdict::kOk && !finding.limit.empty())
      std::printf(" (wanted: %s)", finding.limit.c_str());
    std::printf("\n");
    if (!finding.mend.empty()) std::printf("%22s%s\n", "", finding.mend.c_str());
  }
  const std::size_t problems = CountOf(findings, Verdict::kProblem);
  const std::size_t warnings = CountOf(findings, Verdict::kWarning);
  std::printf("%zu problem%s, %zu warning%s\n", problems, problems == 1 ? "" : "s", warnings,
              warnings == 1 ? "" : "s");
}

// The status of the node, or the finding that there is none.
Result<std::string> AskNode(const Prompt& prompt) {
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Error(store.error());
  return store->StatusJson(static_cast<std::int64_t>(prompt.deadline_us));
}

// Of a node that could not be asked: where one listens, to start one is no way out.
// `runs`: a node has the memory_dir that was looked at.
doctor::Finding Unasked(const Status& why, bool runs) {
  doctor::Finding finding{
      .name = "node",
      .verdict = Verdict::kWarning,
      .value = why.ToString(),
      .limit = "a node that answers",
      .mend = "start one (systemctl start cisternd, or cisternd &), or name its --socket"};
  if (why.code() == Code::kTooLate) {
    finding.verdict = Verdict::kProblem;
    finding.mend =
        "its log's last lines say what it does; where it does not go on, end it and start it again: what "
        "was put is still there";
  } else if (why.code() == Code::kDenied) {
    finding.mend =
        "run this as the node's user (runuser -u USER -- cistern doctor --socket PATH), and with its "
        "--tenant";
  } else if (why.code() == Code::kInvalid) {
    finding.mend = "give it as this says";
  } else if (why.code() != Code::kGone) {
    finding.mend = "ask by cistern of its release";
  } else if (runs) {
    finding.verdict = Verdict::kProblem;
    finding.value += "; and one runs, which has memory_dir";
    finding.mend =
        "it may still start, as its log says; else restart it where its socket was removed, or name its "
        "--socket";
  }
  return finding;
}

// Root asks about another user's node: from here on this process is that user, with the groups that
// the host's list gives it, so that what it may not do is found. None: it goes on as it is.
std::optional<doctor::Finding> GoOnAs(std::uint32_t owner) {
  if (geteuid() != 0 || owner == 0) return std::nullopt;
  const passwd* user = getpwuid(owner);
  const gid_t group = user == nullptr ? owner : user->pw_gid;
  const bool became = (user == nullptr ? setgroups(0, nullptr) : initgroups(user->pw_name, group)) == 0 &&
                      setresgid(group, group, group) == 0 && setresuid(owner, owner, owner) == 0;
  const std::string who = user == nullptr ? Text("user ", owner) : std::string(user->pw_name);
  if (became)
    return doctor::Finding{.name = "user", .value = Text("looked as ", who, ", whose memory_dir it is")};
  return doctor::Finding{.name = "user",
                         .verdict = Verdict::kWarning,
                         .value = Text("looked as root, and memory_dir is ", who, "'s"),
                         .limit = "the node's user",
                         .mend = Text("run it as that user, whose rights count: runuser -u ", who,
                                      " -- cistern doctor --config FILE")};
}

// The settings that the host is judged for: those of the file, else those of the node that runs, else the
// defaults.
node::NodeOptions Wanted(const std::optional<node::NodeOptions>& configured,
                         const std::optional<doctor::NodeBasics>& node) {
  if (configured) return *configured;
  node::NodeOptions options;
  if (!node) return options;
  options.memory_dir = node->memory_dir;
  options.tenant = node->tenant;
  options.memory_bytes = node->memory_bytes;
  options.flash = node->flash;
  return options;
}

}  // namespace

int RunDoctor(int argc, const char* const* argv) {
  Prompt prompt;
  std::string config;
  CommandLine line(
      kName,
      "What on this host keeps a node from starting or makes it slow, and how to mend it. Asks the "
      "node too\nwhere one runs. Exits 1 where there is a problem, 0 where there are warnings at "
      "most.",
      "  cistern doctor\n  cistern doctor --config /etc/cistern/cistern.toml\n"
      "  cistern doctor --json | python3 -m json.tool");
  prompt.AddTo(line, false);
  line.Text("--config", "FILE", "the node's configuration file: the host is judged for what it asks for",
            &config);
  if (auto exit = line.Parse(argc, argv)) return *exit;

  std::optional<node::NodeOptions> configured;
  if (!config.empty()) {
    configured.emplace();
    if (Status status = node::ApplyConfigFile(*configured, config); !status.ok())
      return Complain(kName, status);
    if (prompt.connect.socket.empty()) prompt.connect.socket = configured->socket;
    if (prompt.connect.tenant == ConnectOptions().tenant) prompt.connect.tenant = configured->tenant;
  }
  const auto user =
      configured ? GoOnAs(doctor::OwnerOf(configured->memory_dir, configured->tenant)) : std::nullopt;
  const Result<std::string> status = AskNode(prompt);
  const auto basics = status ? doctor::BasicsOf(*status) : std::nullopt;
  node::NodeOptions options = Wanted(configured, basics);
  const Status resolved = node::ResolveNodeOptions(options);
  doctor::LookAt at{.memory_dir = options.memory_dir, .node_pid = basics ? basics->pid : 0};
  for (const FlashVolume& volume : options.flash) at.flash.push_back(volume.path);
  if (basics) at.journal = basics->journal;
  // What a node runs with is good enough for one.
  if (resolved.ok() && (configured || !basics)) at.starts = &options;
  const Result<doctor::HostFacts> facts = doctor::ReadHostFacts(at);
  if (!facts) return Complain(kName, facts.error());

  Findings findings;
  if (user) findings.push_back(*user);
  std::ranges::move(doctor::FindingsOfHost(*facts, options), std::back_inserter(findings));
  // What the host lacks is said once.
  Status starts = configured || !basics ? resolved : Status();
  if (configured && access(config.c_str(), R_OK) != 0)
    starts = Status(Code::kDenied, Text("configuration file ", config, ": ", ErrnoText(errno)));
  if (starts.ok() && configured && CountOf(findings, Verdict::kProblem) == 0)
    starts = node::CheckNodeOptions(options);
  if (!starts.ok()) {
    findings.insert(findings.begin(), {.name = "settings",
                                       .verdict = Verdict::kProblem,
                                       .value = std::string(starts.message()),
                                       .limit = "what cisternd starts with",
                                       .mend = "cisternd --check --config FILE says whether it would start"});
  }
  if (status) {
    if (configured) configured = options;
    std::ranges::move(doctor::FindingsOfNode(*status, *facts, configured), std::back_inserter(findings));
  } else {
    findings.push_back(Unasked(status.error(), doctor::HasNode(*facts, options)));
  }
  prompt.json ? PrintJson(findings) : Print(findings);
  return CountOf(findings, Verdict::kProblem) == 0 ? kExitOk : kExitFailed;
}

}  // namespace cistern

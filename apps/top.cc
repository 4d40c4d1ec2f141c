// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <optional>

#include "base/clock.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/units.h"
#include "commands.h"
#include "prompt.h"
#include "top_page.h"

namespace cistern {
namespace {

constexpr std::string_view kName = "cistern top";
// The node walks over its blocks for a list of namespaces: that takes one part in so many of the time.
constexpr std::int64_t kShareOfWalks = 20;

struct Terminal {
  bool is_one = false;
  std::size_t width = 100, height = 60;
};

Terminal Ask() {
  Terminal terminal{.is_one = ::isatty(STDOUT_FILENO) == 1};
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 1) {
    terminal.width = size.ws_col;
    terminal.height = size.ws_row - 1u;
  }
  return terminal;
}

void Sleep(std::uint64_t us) {
  timespec left{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000 * 1000)};
  while (::nanosleep(&left, &left) != 0) continue;
}

// One node, asked again and again; connected anew when it is gone.
class Watch {
 public:
  explicit Watch(const Prompt& prompt) : prompt_(prompt) {}

  Status Look(TopPage& page) {
    const auto deadline_us = static_cast<std::int64_t>(prompt_.deadline_us);
    if (!store_) {
      Result<Store> store = Store::Connect(prompt_.connect);
      if (!store) return store.error();
      store_.emplace(std::move(*store));
    }
    const Result<std::string> status = store_->StatusJson(deadline_us);
    if (!status) return Lost(status.error());
    Result<TopSample> sample = ParseTopSample(*status, clock_.Now().UsSince(Instant()));
    if (!sample) return sample.error();
    page.Add(std::move(*sample));
    const Instant before = clock_.Now();
    if (before < next_walk_) return Status();
    const Result<std::string> text = store_->NamespacesJson(deadline_us);
    if (!text) return text.error().code() == Code::kMismatch ? Status() : Lost(text.error());
    Result<std::vector<ListedNamespace>> all = ParseNamespaces(*text);
    if (!all) return all.error();
    page.SetNamespaces(std::move(*all));
    const Instant after = clock_.Now();
    next_walk_ = after.PlusUs(after.UsSince(before) * kShareOfWalks);
    return Status();
  }

 private:
  Status Lost(const Status& why) {
    store_.reset();
    return why;
  }

  const Prompt& prompt_;
  SystemClock clock_;
  std::optional<Store> store_;
  Instant next_walk_;
};

}  // namespace

int RunTop(int argc, const char* const* argv) {
  Prompt prompt;
  std::uint64_t interval_us = 1'000'000, count = 0;
  CommandLine line(kName,
                   "A node as it works: how full its tiers are, what it does a second and how that went, its "
                   "namespaces. Ends with\nCtrl-C, or after --count looks.",
                   "  cistern top\n  cistern top --interval 5s --count 12 >> top.log\n"
                   "  cistern top --json | python3 -m json.tool");
  prompt.AddTo(line, false);
  line.Duration("--interval", "from look to look; default: 1s", &interval_us);
  line.Count("--count", "ends after so many looks; default: goes on", &count, 1, UINT32_MAX);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (interval_us == 0)
    return Complain(kName, Status(Code::kInvalid, "--interval: 0 leaves no time between two looks"));
  // One object: the rates between two looks.
  if (prompt.json && count != 0)
    return Complain(kName,
                    Status(Code::kInvalid, "--count: --json is one object, of two looks; leave one out"));
  if (prompt.json) count = 2;
  const Terminal terminal = Ask();
  Watch watch(prompt);
  TopPage page;
  for (std::uint64_t look = 0; count == 0 || look < count; ++look) {
    if (look > 0) Sleep(interval_us);
    const Status status = watch.Look(page);
    if (!status.ok() && (look == 0 || count != 0)) return Complain(kName, status);
    if (prompt.json) continue;
    if (terminal.is_one) std::printf("\033[H\033[J");
    std::printf("%s", page.Draw(terminal.width, terminal.height).c_str());
    if (!status.ok()) std::printf("%s\n", std::string(status.ToString()).c_str());
    if (!terminal.is_one) std::printf("\n");
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return Complain(kName,
                      Status(Code::kIoError, Text("standard output cannot be written: ", ErrnoText(errno))));
    }
  }
  if (prompt.json) std::printf("%s\n", page.Json().c_str());
  return kExitOk;
}

}  // namespace cistern

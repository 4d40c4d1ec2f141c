// SPDX-License-Identifier: Apache-2.0
// What a scrape of /metrics takes with a million blocks in a hundred namespaces, and what it does to the
// calls of a client meanwhile: a match that the core answers, alone and while one scrape follows the other.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/json/parse.hpp>
#include <thread>

#include "base/fd.h"
#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "fill.h"
#include "measure.h"

namespace cistern {
namespace {

constexpr std::uint64_t kBlockBytes = 512;
constexpr std::size_t kNamespaces = 100;
constexpr std::size_t kCalls = 2'000;  // of a round

Result<std::uint16_t> PortOf(Store& store) {
  const Result<std::string> status = store.StatusJson();
  if (!status) return Error(status.error());
  boost::system::error_code error;
  const boost::json::value parsed = boost::json::parse(*status, error);
  if (error) return Error(Code::kMismatch, "the node's status is not JSON");
  const std::string address(parsed.at("node").at("http").as_string());
  const Result<std::uint64_t> port = ParseCount("port", address.substr(address.rfind(':') + 1), 1, 65'535);
  if (!port) return Error(port.error());
  return static_cast<std::uint16_t>(*port);
}

// The answer's bytes.
Result<std::size_t> Scrape(std::uint16_t port) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  static constexpr std::string_view kAsk = "GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n";
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0 ||
      send(socket.get(), kAsk.data(), kAsk.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kAsk.size()))
    return Error(Code::kIoError, Text("http: ", ErrnoText(errno)));
  std::string first;
  std::size_t all = 0;
  char bytes[65'536];
  for (ssize_t got = 0; (got = recv(socket.get(), bytes, sizeof(bytes), 0)) > 0;) {
    if (first.empty()) first.assign(bytes, static_cast<std::size_t>(got));
    all += static_cast<std::size_t>(got);
  }
  if (!first.starts_with("HTTP/1.1 200 ")) return Error(Code::kIoError, "a scrape was refused");
  return all;
}

// A match of a block that is nowhere goes to the core.
Status Calls(Store& store, const Namespace& ns, Samples& samples) {
  BlockKey key;
  key.length = BlockKey::kMaxBytes;
  for (std::size_t i = 0; i < kCalls; ++i) {
    const Stopwatch watch;
    const Result<MatchResult> match = store.Match(ns, std::span(&key, 1)).Wait();
    if (!match) return match.error();
    samples.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
  }
  return Status();
}

Status AttachMany(Store& store) {
  for (std::size_t i = 1; i < kNamespaces; ++i) {
    NamespaceSpec spec = BenchNamespace(kBlockBytes);
    spec.fields.emplace_back("number", Text(i));
    if (const Result<Namespace> ns = store.Attach(spec); !ns) return ns.error();
  }
  return Status();
}

}  // namespace

Status BenchHttp(BenchOptions& options) {
  options.progress(Text("filling ", options.million, " blocks of ", SizeText(kBlockBytes), " for scrapes"));
  const std::uint64_t memory = options.million * (kBlockBytes + 512) / 7 * 8 + (256u << 20);
  Result<Daemon> daemon =
      StartNode(options, {"--memory", SizeText(memory), "--alignment", "512B", "--http", "0"});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  const Result<FilledBlocks> blocks = Fill(*store, options.million, kBlockBytes, 1'000);
  if (!blocks) return blocks.error();
  if (Status status = AttachMany(*store); !status.ok()) return status;
  const Result<std::uint16_t> port = PortOf(*store);
  if (!port) return port.error();
  options.progress("scrapes");
  Samples scrapes, alone, beside;
  Status failed;
  for (std::uint64_t round = 0; round < options.rounds && failed.ok(); ++round) {
    if (failed = Calls(*store, blocks->ns, alone); !failed.ok()) break;
    std::atomic<bool> ends{false};
    std::jthread scraper([&] {
      while (!ends && failed.ok()) {
        const Stopwatch watch;
        if (const Result<std::size_t> scraped = Scrape(*port); !scraped) failed = scraped.error();
        scrapes.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
      }
    });
    const Status called = Calls(*store, blocks->ns, beside);
    ends = true;
    scraper.join();
    if (failed.ok()) failed = called;
  }
  if (!failed.ok()) return failed;
  options.row(TimeRow(Text("http_scrape_", kNamespaces, "_namespaces_", options.million, "_blocks"), "",
                      scrapes, {}));
  options.row(TimeRow("http_match_while_scraped", "match alone", beside, alone));
  return Status();
}

}  // namespace cistern

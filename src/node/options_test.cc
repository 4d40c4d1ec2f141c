// SPDX-License-Identifier: Apache-2.0
#include "node/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "memory/host_memory.h"
#include "node/client_rules.h"
#include "node/flash_options.h"
#include "node/start_check.h"

namespace cistern::node {
namespace {

using ::testing::HasSubstr;

std::string Message(const Status& status) { return std::string(status.message()); }

TEST(NodeOptions, FileAndFlagAreOneTable) {
  NodeOptions options;
  EXPECT_TRUE(ApplyConfigText(options, "memory = \"256MiB\"\nmovers = 2\npoll = \"10us\"\n", "c.toml").ok());
  EXPECT_EQ(options.memory_bytes, 256u << 20);
  EXPECT_EQ(options.movers, 2u);
  EXPECT_EQ(options.poll_us, 10u);
}

TEST(NodeOptions, ClientsAreUsersGroupsOrAnyByNumberOrName) {
  NodeOptions options;
  EXPECT_TRUE(ApplyConfigText(options, "clients = [\"user:1000\", \"group:root\"]\n", "c.toml").ok());
  server::PeerRules rules = PeerRulesOf(options.clients);
  EXPECT_EQ(rules.users, std::vector<std::uint32_t>{1000});
  EXPECT_EQ(rules.groups, std::vector<std::uint32_t>{0});
  EXPECT_FALSE(rules.anyone);
  EXPECT_EQ(FindNodeSetting("clients")->get(options), "user:1000, group:root");
  EXPECT_TRUE(SetNodeOption(options, "--clients", "clients", "any").ok());
  EXPECT_TRUE(PeerRulesOf(options.clients).anyone);
  for (const char* wrong :
       {"1000", "user:", "user:4294967295", "user:-1", "group:no-such-group", "all", ""}) {
    const Status status = SetNodeOption(options, "--clients", "clients", wrong);
    EXPECT_EQ(status.code(), Code::kInvalid) << wrong;
    EXPECT_THAT(Message(status), HasSubstr("--clients: "));
  }
  EXPECT_THAT(Message(SetNodeOption(options, "--clients", "clients", "user:-1")),
              HasSubstr("user:-1 is no number from 0 to 4294967294"));
  EXPECT_TRUE(PeerRulesOf({}).own_user_only());
}

TEST(NodeOptions, AnAlignmentThatIsNoneIsToldTheTwoThatAre) {
  NodeOptions options;
  for (const char* wrong : {"1000", "1000MiB", "8KiB", "x"}) {
    const Status status = SetNodeOption(options, "--alignment", "alignment", wrong);
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_THAT(Message(status), HasSubstr("--alignment: "));
    EXPECT_THAT(Message(status), HasSubstr("is not allowed; use 512B or 4096B")) << wrong;
  }
  EXPECT_TRUE(SetNodeOption(options, "--alignment", "alignment", "4KiB").ok());
}

TEST(NodeOptions, UnknownKeyNamesFileLineAndTheNearest) {
  NodeOptions options;
  Status status = ApplyConfigText(options, "movers = 2\nmemroy = \"1GiB\"\n", "c.toml");
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_THAT(Message(status), HasSubstr("c.toml:2"));
  EXPECT_THAT(Message(status), HasSubstr("memory"));
  EXPECT_EQ(options.movers, 1u) << "a broken file must change nothing";
}

TEST(NodeOptions, EveryFormOfAValueIsRead) {
  NodeOptions options;
  Status status = ApplyConfigText(options,
                                  "\xEF\xBB\xBF# a node\r\n\r\n  movers=2# two\r\n"
                                  "memory_dir = \"/srv/k\u00e4se \\\"#\\\\\"  # not the comment\n"
                                  "tenant = 'a'",
                                  "c.toml");
  EXPECT_TRUE(status.ok()) << Message(status);
  EXPECT_EQ(options.movers, 2u);
  EXPECT_EQ(options.memory_dir, "/srv/k\u00e4se \"#\\");
  EXPECT_EQ(options.tenant, "a");
}

TEST(NodeOptions, ABrokenLineIsNamedAndChangesNothing) {
  for (const char* broken :
       {"[node]", "[~A#", "\u00e4 = 1", "\ufe7f", "movers", "movers 2", "movers =", "movers = two",
        "movers = 2 3", "movers = 2.5", "tenant = \"a", "tenant = 'a", "tenant = \"\\q\"", "tenant = \"\\",
        "= 2", "movers = 99999999999999999999", "poll = \"1us\"\npoll = \"2us\""}) {
    NodeOptions options;
    Status status = ApplyConfigText(options, std::string("movers = 2\n") + broken, "c.toml");
    EXPECT_EQ(status.code(), Code::kInvalid) << broken;
    EXPECT_THAT(Message(status),
                HasSubstr(std::string_view(broken).starts_with("poll") ? "c.toml:3: " : "c.toml:2: "));
    EXPECT_EQ(options.movers, 1u) << broken;
  }
}

// A path would end at a NUL, and a comment would go on past the line's end of an editor that writes CR alone.
TEST(NodeOptions, ALineWithAControlCharacterIsRefused) {
  for (const std::string_view broken :
       {std::string_view("memory_dir = \"/dev/shm/a\0b\"\n", 28), std::string_view("# a node\rmovers = 3\r"),
        std::string_view("tenant = \"a\" # \x1b[31m\n"),
        std::string_view("[[quota]]\rnamespace = \"a\"\n")}) {
    NodeOptions options;
    const Status status = ApplyConfigText(options, "movers = 2\n" + std::string(broken), "c.toml");
    EXPECT_EQ(status.code(), Code::kInvalid) << broken;
    EXPECT_THAT(Message(status), HasSubstr("c.toml:2: ")) << broken;
    EXPECT_EQ(options.movers, 1u) << broken;
  }
  NodeOptions options;
  EXPECT_TRUE(ApplyConfigText(options, "movers = 2 \t# a\tb\r\n\r\n", "c.toml").ok());
}

TEST(NodeOptions, SizeWithoutUnitIsRefused) {
  NodeOptions options;
  Status status = SetNodeOption(options, "--memory", "memory", "1024");
  EXPECT_THAT(Message(status), HasSubstr("memory"));
  EXPECT_THAT(Message(status), HasSubstr("1024"));
}

TEST(NodeOptions, MemoryAboveTheHostNamesBoth) {
  NodeOptions options;
  options.memory_bytes = 1ull << 50;
  Status status = ResolveNodeOptions(options);
  EXPECT_THAT(Message(status), HasSubstr("1024TiB"));
  EXPECT_THAT(Message(status), HasSubstr("above what this host gives"));
}

TEST(NodeOptions, DefaultIsAQuarterOrWhatTheFileSystemHas) {
  constexpr std::uint64_t kGiB = 1ull << 30;
  EXPECT_EQ(DefaultMemoryBytes(64 * kGiB, 32 * kGiB), 16 * kGiB);
  EXPECT_EQ(DefaultMemoryBytes(64 * kGiB, 8 * kGiB), 7 * kGiB);
  EXPECT_EQ(DefaultMemoryBytes(64 * kGiB, 64u << 20), 56u << 20);
  EXPECT_EQ(DefaultMemoryBytes(64 * kGiB, 0), 16 * kGiB) << "no size: hugetlbfs without a limit";
  NodeOptions options;
  ASSERT_TRUE(ResolveNodeOptions(options).ok());
  EXPECT_EQ(options.memory_bytes, DefaultMemoryBytes(memory::ReadHostMemory()->limit_bytes,
                                                     memory::FileSystemBytes("/dev/shm/not/there/yet")));
}

NodeOptions OfACell() {
  NodeOptions options;
  options.cell = {"http://127.0.0.1:2379"};
  options.member = "a";
  options.cell_address = "127.0.0.1:7420";
  return options;
}

TEST(NodeOptions, ACellIsToldAsAListAndAsOneText) {
  NodeOptions options;
  ASSERT_TRUE(
      SetNodeOption(options, "--cell", "cell", "http://10.0.0.1:2379,https://etcd.example:2379").ok());
  EXPECT_EQ(options.cell, (std::vector<std::string>{"http://10.0.0.1:2379", "https://etcd.example:2379"}));
  ASSERT_TRUE(ApplyConfigText(options, "cell = [\"http://a:1\", \"http://b:2\"]\n", "c.toml").ok());
  EXPECT_EQ(options.cell, (std::vector<std::string>{"http://a:1", "http://b:2"}));
  ASSERT_TRUE(
      ApplyConfigText(options, "cell_role = \"store\"\ncell_copies = [\"model=a*:3\", \"2\"]\n", "c.toml")
          .ok());
  EXPECT_EQ(options.cell_role, mesh::Role::kStore);
  EXPECT_EQ(options.cell_copies, (std::vector<policy::Copies>{{"model=a*", 3}, {"", 2}}));
  EXPECT_EQ(FindNodeSetting("cell_copies")->get(options), "model=a*:3; 2");
  EXPECT_THAT(Message(SetNodeOption(options, "--cell-role", "cell_role", "flash")),
              HasSubstr("--cell-role: flash is neither engine nor store"));
  EXPECT_THAT(Message(SetNodeOption(options, "--cell-copies", "cell_copies", "9")),
              HasSubstr("--cell-copies: copies: 9 is not 1 to 8"));
  EXPECT_THAT(Message(SetNodeOption(options, "--cell", "cell", "10.0.0.1:2379")),
              HasSubstr("--cell: 10.0.0.1:2379 is no endpoint"));
}

TEST(NodeOptions, WhatIsWrongWithACellIsNamedWithTheWayOut) {
  NodeOptions good = OfACell();
  EXPECT_TRUE(ResolveNodeOptions(good).ok());
  good.cell_address = "10.0.0.7:7420";
  good.cell_authority = good.cell_certificate = good.cell_certificate_key = "/none";
  EXPECT_TRUE(ResolveNodeOptions(good).ok());
  for (const char* http : {"7419", "7422", "10.0.0.8:7421", "0"}) {
    good.http = http;
    EXPECT_TRUE(ResolveNodeOptions(good).ok()) << http;
  }
  const std::pair<void (*)(NodeOptions&), const char*> wrong[] = {
      {[](NodeOptions& o) { o.member.clear(); }, "member: is not given"},
      {[](NodeOptions& o) { o.member = "a/b"; }, "member id 'a/b'"},
      {[](NodeOptions& o) { o.cell_name = "x y"; }, "cell_name: x y"},
      {[](NodeOptions& o) { o.cell_address.clear(); }, "cell_address: is not given"},
      {[](NodeOptions& o) { o.cell_address = "127.0.0.1"; }, "is no address and port"},
      {[](NodeOptions& o) { o.cell_address = "0.0.0.0:7420"; }, "is every address of this host"},
      {[](NodeOptions& o) { o.cell_address = "10.0.0.7:7420"; }, "cell_key: is not given"},
      {[](NodeOptions& o) { o.cell_listen = "0.0.0.0:7420"; }, "cell_key: is not given"},
      {[](NodeOptions& o) { o.cell_address = "node-7.cistern:7420"; }, "names are not looked up"},
      {[](NodeOptions& o) { o.cell_listen = "fd00::7:7420"; }, "cell_listen: fd00::7:7420 has no address in"},
      {[](NodeOptions& o) { o.cell_address = "[fd00::7:7420"; }, "has no address in numbers"},
      {[](NodeOptions& o) { o.cell_keys.assign(3, "/none"); }, "cell_key: 3 are given"},
      {[](NodeOptions& o) { o.cell_certificate = "/none"; }, "some are given without the others"},
      {[](NodeOptions& o) { o.cell_authority = o.cell_certificate_key = "/none"; }, "some are given without"},
      {[](NodeOptions& o) {
         o.cell_authority = o.cell_certificate = o.cell_certificate_key = "/none";
         o.cell_keys.assign(1, "/none");
       },
       "cell_key and cell_certificate"},
      {[](NodeOptions& o) { o.etcd_key = "/none"; }, "etcd_certificate and etcd_key"},
      {[](NodeOptions& o) { o.etcd_certificate = o.etcd_key = "/none"; }, "so it must be https://"},
      {[](NodeOptions& o) { o.cell = {"http://root:word@10.0.0.7:2379"}; },
       "cell: etcd endpoint 10.0.0.7:2379: only host and port"},
      {[](NodeOptions& o) { o.cell.assign(17, "http://10.0.0.7:2379"); }, "cell: etcd: 17 endpoints"},
      {[](NodeOptions& o) { o.http = "7420"; },
       "http: port 7420 is the cell's: cell_address, 127.0.0.1:7420"},
      {[](NodeOptions& o) { o.http = "0.0.0.0:7421"; },
       "http: port 7421 is the cell's: the one behind that of cell_address, 127.0.0.1:7420"},
      {[](NodeOptions& o) { o.cell.clear(); }, "member: is of a cell, and cell names none"},
      {[](NodeOptions& o) {
         o = NodeOptions();
         o.cell_name = "blue";
       },
       "cell_name: is of a cell, and cell names none"},
  };
  for (const auto& [spoil, says] : wrong) {
    NodeOptions options = OfACell();
    spoil(options);
    const Status status = ResolveNodeOptions(options);
    EXPECT_EQ(status.code(), Code::kInvalid) << says;
    EXPECT_THAT(Message(status), HasSubstr(says));
  }
}

TEST(NodeOptions, CheckNamesWhatAStartWouldFindWrong) {
  NodeOptions options;
  options.memory_bytes = 64u << 20;
  ASSERT_TRUE(ResolveNodeOptions(options).ok());
  EXPECT_TRUE(CheckNodeOptions(options).ok());
  options.socket = "/run/" + std::string(120, 'x');
  EXPECT_THAT(Message(CheckNodeOptions(options)), HasSubstr("at most 107"));
  options.socket.clear();
  options.flash = {{.path = "/no/such/device"}};
  EXPECT_THAT(Message(CheckNodeOptions(options)), HasSubstr("/no/such/device"));
  options.flash.clear();
  options.memory_dir = "/dev/shm";
  options.memory_bytes = 1ull << 60;
  EXPECT_THAT(Message(CheckNodeOptions(options)), HasSubstr("--shm-size"));
  // As large as its file system: the index has no room.
  options.memory_bytes = memory::FileSystemBytes(options.memory_dir);
  if (options.memory_bytes > 0) {
    EXPECT_THAT(Message(CheckNodeOptions(options)), HasSubstr("and its index take"));
  }
}

TEST(NodeOptions, TenantNamesADirectory) {
  NodeOptions options;
  options.tenant = "../etc";
  EXPECT_THAT(Message(ResolveNodeOptions(options)), HasSubstr("../etc"));
}

TEST(FlashOptions, AVolumeIsAPathAndMayHaveASize) {
  NodeOptions options;
  for (const char* text : {"/mnt/a:100GiB", "/dev/nvme0n1", "/mnt/with:colon", "/mnt/with:colon:1GiB"}) {
    ASSERT_TRUE(SetNodeOption(options, "--flash", "flash", text).ok()) << text;
  }
  ASSERT_EQ(options.flash.size(), 4u);
  EXPECT_EQ(options.flash[0].path, "/mnt/a");
  EXPECT_EQ(options.flash[0].size_bytes, 100ull << 30);
  EXPECT_EQ(options.flash[1].path, "/dev/nvme0n1");
  EXPECT_EQ(options.flash[1].size_bytes, 0u);
  EXPECT_EQ(options.flash[2].path, "/mnt/with:colon");
  EXPECT_EQ(options.flash[3].path, "/mnt/with:colon");
  EXPECT_EQ(options.flash[3].size_bytes, 1ull << 30);
}

TEST(FlashOptions, AColonOfThePathIsNotTakenForThatOfASize) {
  const std::string device = "/dev/disk/by-path/pci-0000:01:00.0-nvme-1";
  for (const std::string& path : {device, std::string("/mnt/slot:0/data")}) {
    NodeOptions options;
    for (const std::string& text : {path, path + ":1GiB"}) {
      const Status status = SetNodeOption(options, "--flash", "flash", text);
      ASSERT_TRUE(status.ok()) << Message(status);
      EXPECT_EQ(options.flash.back().path, path);
    }
    EXPECT_EQ(options.flash[0].size_bytes, 0u);
    EXPECT_EQ(options.flash[1].size_bytes, 1ull << 30);
  }
}

TEST(FlashOptions, ADiskWhosePathEndsAsASizeWithoutAUnitIsTakenByItsPath) {
  const std::string directory = testing::TempDir() + "by-path-" + std::to_string(::getpid());
  for (const char* name : {"pci-0000:03:00.0-scsi-0:2:1:0", "virtio-pci-0000:00:06.0"}) {
    const std::string path = directory + "/" + name;
    std::filesystem::create_directories(path);
    NodeOptions options;
    for (const std::string& text : {path, path + ":1GiB"}) {
      const Status status = SetNodeOption(options, "--flash", "flash", text);
      ASSERT_TRUE(status.ok()) << Message(status);
      EXPECT_EQ(options.flash.back().path, path);
    }
    EXPECT_EQ(options.flash[0].size_bytes, 0u);
    EXPECT_EQ(options.flash[1].size_bytes, 1ull << 30);
    std::filesystem::remove_all(directory);
    EXPECT_FALSE(SetNodeOption(options, "--flash", "flash", path).ok()) << "there is no such disk";
  }
}

TEST(FlashOptions, InTheFileTheyAreAListAndNumbersAndSwitchesToo) {
  NodeOptions options;
  Status status = ApplyConfigText(options,
                                  "flash = [ \"/mnt/a:1GiB\" , '/dev/b', ]  # two\n"
                                  "flash_write = \"selective:3\"\nflash_admit = \"second-hit\"\n"
                                  "flash_budget = \"2TiB/day\"\ndiscard_foreign = true\nscrub = 0\n"
                                  "flash_read_ahead = \"0B\"\njournal_dir = \"/var/lib/cistern\"\n",
                                  "c.toml");
  ASSERT_TRUE(status.ok()) << Message(status);
  ASSERT_EQ(options.flash.size(), 2u);
  EXPECT_EQ(options.flash[1].path, "/dev/b");
  EXPECT_EQ(options.flash_budget_bytes_a_day, 2ull << 40);
  EXPECT_TRUE(options.discard_foreign);
  EXPECT_EQ(options.scrub_bytes_per_s, 0u);
  EXPECT_EQ(options.flash_read_ahead_bytes, 0u);
  EXPECT_EQ(options.journal_dir, "/var/lib/cistern");
  EXPECT_EQ(options.flash_write, (WriteRule{WritePolicy::kSelective, 3}));
  EXPECT_EQ(options.flash_admit, Admission::kSecondHit);
  EXPECT_TRUE(ApplyConfigText(options, "flash = \"/mnt/only:1GiB\"\n", "d.toml").ok());
  ASSERT_EQ(options.flash.size(), 1u) << "a file's list takes the place of what was there";
  EXPECT_TRUE(ApplyConfigText(options, "flash = []\n", "e.toml").ok());
  EXPECT_TRUE(options.flash.empty());
}

TEST(FlashOptions, ABrokenListIsNamedAndChangesNothing) {
  for (const char* broken :
       {"flash = [", "flash = [\"/a:1GiB\"", "flash = [\"/a:1GiB\" \"/b:1GiB\"]", "flash = [1]",
        "flash = [\"/a:1GiB\"] x", "movers = [\"1\"]", "flahs = []", "flash = [\"/a:1GiB\", \"/b:1\"]"}) {
    NodeOptions options;
    Status status = ApplyConfigText(options, std::string("movers = 2\n") + broken, "c.toml");
    EXPECT_EQ(status.code(), Code::kInvalid) << broken;
    EXPECT_THAT(Message(status), HasSubstr("c.toml:2: ")) << broken;
    EXPECT_EQ(options.movers, 1u) << broken;
    EXPECT_TRUE(options.flash.empty()) << broken;
  }
}

TEST(FlashOptions, BadInputNamesTheOptionAndTheWayOut) {
  struct Bad {
    const char* name;
    const char* text;
    const char* way_out;
  };
  for (const Bad& bad :
       {Bad{"flash", "/mnt/a:100", "GiB"}, Bad{"flash", "/mnt/a:0GiB", "zero"}, Bad{"flash", "", "PATH:SIZE"},
        Bad{"memory", "0GiB", "leave it out"}, Bad{"flash", ":1GiB", "PATH:SIZE"},
        Bad{"flash_budget", "0", "leave it out"}, Bad{"flash_budget", "0B/day", "leave it out"},
        Bad{"flash_budget", "2TiB", "/day"}, Bad{"flash_write", "trough", "through, back"},
        Bad{"flash_write", "selective:0", "255"}, Bad{"flash_write", "back:2", "known"},
        Bad{"flash_admit", "second", "second-hit"}, Bad{"flash_promote", "never", "second-hit"},
        Bad{"scrub", "8MiB", "/s"}, Bad{"discard_foreign", "yes", "true"},
        Bad{"flash_read_ahead", "64", "MiB"}}) {
    NodeOptions options;
    Status status = SetNodeOption(options, "the name", bad.name, bad.text);
    EXPECT_EQ(status.code(), Code::kInvalid) << bad.name << " " << bad.text;
    EXPECT_THAT(Message(status), ::testing::StartsWith("the name: ")) << bad.text;
    EXPECT_THAT(Message(status), HasSubstr(bad.way_out)) << bad.text;
  }
}

TEST(FlashOptions, WhatAProgramSaysIsCheckedAsWhatAPersonSays) {
  NodeOptions twice;
  twice.flash = {{"/mnt/a", 1u << 30}, {"/mnt/a", 1u << 30}};
  EXPECT_THAT(Message(ResolveNodeOptions(twice)), HasSubstr("twice"));
  NodeOptions many;
  for (int i = 0; i < 17; ++i) many.flash.push_back({"/mnt/" + std::to_string(i), 1u << 30});
  EXPECT_THAT(Message(ResolveNodeOptions(many)), HasSubstr("16"));
  NodeOptions policy;
  policy.flash_write = {WritePolicy::kSelective, 0};
  EXPECT_THAT(Message(ResolveNodeOptions(policy)), HasSubstr("flash_write: "));
  NodeOptions number;
  number.flash_promote = Promotion{3};
  EXPECT_THAT(Message(ResolveNodeOptions(number)), HasSubstr("flash_promote: "));
}

TEST(FlashOptions, WhatSaysHowFlashIsUsedIsRefusedByNameWhereThereIsNone) {
  const std::vector<std::pair<std::string, std::string>> settings = {
      {"flash_write", "back"},      {"flash_admit", "all"},     {"flash_promote", "all"},
      {"flash_budget", "2TiB/day"}, {"flash_read_ahead", "0B"}, {"discard_foreign", "true"}};
  for (const auto& [name, text] : settings) {
    NodeOptions options;
    ASSERT_TRUE(SetNodeOption(options, name, name, text).ok());
    EXPECT_THAT(Message(ResolveNodeOptions(options)),
                testing::StartsWith(name + ": is of flash, and none is given beside it; give some"));
    options.flash = {{"/mnt/a", 1u << 30}};
    EXPECT_THAT(Message(ResolveNodeOptions(options)), testing::Not(HasSubstr("is of flash")));
  }
}

TEST(NodeOptions, EachKnowsWhereItWasGiven) {
  NodeOptions options;
  ASSERT_TRUE(ApplyConfigText(options, "# a node\nmovers = 2\n", "c.toml").ok());
  EXPECT_EQ(options.origins.at("movers"), "c.toml:2");
  EXPECT_FALSE(options.origins.contains("memory"));
  EXPECT_FALSE(ApplyConfigText(options, "poll = \"10us\"\nmovres = 3\n", "d.toml").ok());
  EXPECT_FALSE(options.origins.contains("poll"));
}

TEST(NodeOptions, AReloadTakesWhatARunningNodeCanChangeAndNamesTheRest) {
  NodeOptions running, read;
  running.movers = 4;
  running.linger_us = 7;
  ASSERT_TRUE(ApplyConfigText(running, "log_level = \"debug\"\nscrub = \"1MiB/s\"\n", "c.toml").ok());
  const std::string_view text =
      "movers = 2\nflash_admit = \"second-hit\"\nscrub = \"1MiB/s\"\njournal_dir = \"/j\"\n";
  ASSERT_TRUE(ApplyConfigText(read, text, "d").ok());
  const Reloaded reloaded = Reload(running, read);
  EXPECT_THAT(reloaded.changed,
              testing::ElementsAre("linger: 7us -> never (default)", "flash_admit: worth -> second-hit (d:2)",
                                   "log_level: debug -> info (default)"));
  EXPECT_THAT(reloaded.kept,
              testing::ElementsAre("movers: is 4 until the next start, which takes 2 (d:1)",
                                   "journal_dir: is none until the next start, which takes /j (d:4)"));
  EXPECT_EQ(reloaded.options.movers, 4u);
  EXPECT_EQ(reloaded.options.flash_admit, Admission::kSecondHit);
  EXPECT_EQ(reloaded.options.origins.at("scrub"), "d:3");
  EXPECT_FALSE(reloaded.options.origins.contains("log_level"));
}

TEST(NodeOptions, QuotasAreTablesOfTheFileOrFlags) {
  NodeOptions options;
  ASSERT_TRUE(ApplyConfigText(options,
                              "memory = \"4GiB\"\n[[quota]]\nnamespace = \"model=a*\" # all of a\n"
                              "memory = \"1GiB\"\nreserve = \"512MiB\"\n\n [[quota]]\nnamespace = 'b'\n"
                              "reserve = \"2GiB\"",
                              "c")
                  .ok());
  ASSERT_EQ(options.quotas.size(), 2u);
  EXPECT_EQ(options.quotas[0], (policy::Quota{"model=a*", 1u << 30, 512u << 20}));
  EXPECT_EQ(policy::ToString(options.quotas[1]), "b:reserve=2GiB");
  EXPECT_EQ(options.memory_bytes, 4ull << 30) << "the key of before the tables";
  ASSERT_TRUE(SetNodeOption(options, "--quota", "quota", "c:memory=1GiB").ok());
  EXPECT_EQ(options.quotas.size(), 3u);

  const auto wrong = [](const std::string& text) {
    NodeOptions refused;
    const Status status = ApplyConfigText(refused, text, "c");
    EXPECT_TRUE(refused.quotas.empty());
    return Message(status);
  };
  EXPECT_THAT(wrong("[[quota]]\nnamespace = \"a\"\n"), HasSubstr("c:1: "));
  EXPECT_THAT(wrong("[[quota]]\nmemory = \"1GiB\"\n"), HasSubstr("PATTERN"));
  EXPECT_THAT(wrong("[[quota]]\nnamespace = \"a\"\nflahs = \"1GiB\"\n"),
              HasSubstr("c:3: unknown key of [[quota]] flahs"));
  EXPECT_THAT(wrong("[[quota]]\nnamespace = \"a\"\nmemory = \"1GiB\"\nreserve = \"2GiB\"\n"),
              HasSubstr("its reserve of 2GiB is above the 1GiB that it may have"));
  EXPECT_THAT(wrong("[[quotas]]\n"), HasSubstr("c:1: "));
  EXPECT_THAT(wrong("quota = [\"a:memory=1GiB\", \"b:memory=1GiB\", \"a:flash=1GiB\"]\n"),
              HasSubstr("quota: a is given twice"));
  EXPECT_THAT(wrong("quota = [\"a:memory=1GiB\"]\n[[quota]]\nnamespace = \"b\"\nmemory = \"1GiB\"\n"),
              HasSubstr("c:2: quota is set twice"));
  EXPECT_THAT(wrong("[[quota]] # of a\nnamespace = \"a\"\nmemory = \"1GiB\"\nmemory = \"2GiB\"\n"),
              HasSubstr("c:4: memory is set twice in one [[quota]]"));
  std::string many;
  for (int i = 0; i < 16; ++i)
    many += "[[quota]]\nnamespace = \"n" + std::to_string(i) + "\"\nmemory = \"1GiB\"\n";
  EXPECT_THAT(wrong(many), HasSubstr("one more than 15"));
  NodeOptions all;
  all.memory_bytes = 128u << 20;
  all.quotas = {{.pattern = "a", .reserve_bytes = 100u << 20}, {.pattern = "b", .reserve_bytes = 100u << 20}};
  EXPECT_THAT(Message(ResolveNodeOptions(all)), HasSubstr("the reserves are 200MiB together"));
  for (policy::Quota& quota : all.quotas) quota.reserve_bytes = std::uint64_t{1} << 63;
  EXPECT_THAT(Message(ResolveNodeOptions(all)), HasSubstr("the reserves are"));
}

// What `cistern config` shows can be written again.
TEST(NodeOptions, WhatASettingSaysOfItselfItTakes) {
  NodeOptions options;
  options.memory_bytes = 3u << 20;
  options.flash_budget_bytes_a_day = 1'000'000'007;
  options.linger_us = 90'000'000;
  options.max_blocks = 17;
  for (const Setting& setting : NodeSettings()) {
    const std::string text = setting.get(options);
    if (text == "none" || text == "never") continue;
    NodeOptions other;
    EXPECT_TRUE(setting.set(other, setting.name, text).ok()) << setting.name << ": " << text;
    EXPECT_EQ(setting.get(other), text) << setting.name;
  }
}

}  // namespace
}  // namespace cistern::node

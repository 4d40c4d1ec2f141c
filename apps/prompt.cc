// SPDX-License-Identifier: Apache-2.0
#include "prompt.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"

namespace cistern {

void Prompt::AddTo(CommandLine& line, bool with_namespace) {
  line.Text(
      "--socket", "PATH",
      "the node's socket; default: cistern.sock in /run (root), /run/user/UID or /tmp/cistern-UID, where a "
      "node of this user listens",
      &connect.socket);
  line.Text("--node-user", "UID",
            "whose node it may be beside this user's and root's; any: whoever listens there; default: none",
            &connect.node_user);
  line.Text("--tenant", "NAME", "tenant; default: default", &connect.tenant);
  line.Flag("--deadline", "DURATION",
            "how long the call may take, and before it the connection; default: 10s, the connection 5s",
            [this](std::string_view text) {
              const Result<std::uint64_t> us = ParseDurationUs("--deadline", text);
              if (!us) return us.error();
              if (*us == 0)
                return Status(Code::kInvalid, "--deadline is 0, by which nothing is done: give it more");
              deadline_us = *us;
              connect.deadline_us = static_cast<std::int64_t>(*us);
              return Status();
            });
  line.Switch("--json", "one JSON object on stdout", &json);
  if (!with_namespace) return;
  line.Text("--namespace", "NAME",
            "namespace whose list is this name alone, as `cistern put` makes it (required); an engine's list "
            "is another",
            &namespace_name);
  line.Switch(
      "--strict",
      "the namespace is strict, part of what it is: read only while its node's membership of the cell stands",
      &strict);
  line.Text("--mesh", "on|off",
            "whether other nodes of the cell find and read it; default: as its users said last, or on",
            &mesh);
}

Result<Attachment> AttachByName(const Prompt& prompt, IfNew if_new) {
  if (prompt.namespace_name.empty()) {
    return Error(Code::kInvalid, "--namespace is missing; name one, for example --namespace demo");
  }
  if (!prompt.mesh.empty() && prompt.mesh != "on" && prompt.mesh != "off")
    return Error(Code::kInvalid, Text("--mesh is ", Shown(prompt.mesh), ", on or off is needed"));
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Error(store.error());
  NamespaceSpec spec;
  spec.name = prompt.namespace_name;
  spec.fields = {{"name", prompt.namespace_name}};
  spec.groups = {GroupSpec{.name = "full"}};
  // Keys typed at a prompt are not hashes of contents; who types them is trusted to know.
  spec.trusted_keys = true;
  spec.strict = prompt.strict;
  if (!prompt.mesh.empty()) spec.mesh = prompt.mesh == "on";
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  Result<Namespace> ns =
      if_new == IfNew::kMake ? store->Attach(spec, deadline_us) : store->AttachKnown(spec, deadline_us);
  if (!ns) return Error(ns.error());
  return Attachment{std::move(*store), std::move(*ns)};
}

std::string WhyReadsAreOff(Attachment& at, std::int64_t deadline_us) {
  const Result<std::string> text = at.store.StatusJson(deadline_us);
  if (!text) return {};
  boost::system::error_code error;
  const boost::json::value status = boost::json::parse(*text, error);
  if (error) return {};
  const auto is = [&status](std::string_view where, bool expected) {
    boost::system::error_code ignored;
    const boost::json::value* value = status.find_pointer(where, ignored);
    return value != nullptr && value->is_bool() && value->get_bool() == expected;
  };
  if (is("/switches/reads_on", false)) return "reads are off, `cistern admin reads on` turns them on";
  if (at.ns.spec().strict && is("/cell/stands", false))
    return "the namespace is strict, and this node's membership of its cell does not stand: `cistern cell` "
           "says why";
  const std::string& name = at.ns.spec().name;
  const boost::json::value* rows = status.find_pointer("/namespaces", error);
  for (std::size_t i = 0; rows != nullptr && rows->is_array() && i < rows->get_array().size(); ++i) {
    const std::string row = Text("/namespaces/", i);
    const boost::json::value* title = status.find_pointer(row + "/namespace", error);
    if (title == nullptr || !title->is_string() || title->get_string() != name) continue;
    if (is(row + "/reads_on", true)) return {};
    if (is("/drain/on", true))
      return "the node drains, so that it can be stopped; `cistern admin drain off` ends that";
    if (is("/switches/reads_on", true))
      return Text("reads of ", Shown(name), " are off, `cistern admin reads on --namespace ", Shown(name),
                  "` turns them on");
  }
  return {};
}

Result<std::vector<BlockKey>> KeysFromHex(const std::vector<std::string>& texts) {
  std::vector<BlockKey> keys;
  for (const std::string& text : texts) {
    Result<BlockKey> key = BlockKey::FromHex(text);
    if (!key) return Error(key.error());
    keys.push_back(*key);
  }
  return keys;
}

}  // namespace cistern

// SPDX-License-Identifier: Apache-2.0
#include "node/start_check.h"

#include "admin/http_server.h"
#include "memory/arena_file.h"
#include "node/cell_options.h"
#include "node/flash_places.h"
#include "node/ground.h"
#include "server/listener.h"

namespace cistern::node {
namespace {

Status CheckHttp(const NodeOptions& options) {
  if (options.http.empty()) return Status();
  const Result<admin::HttpAddress> address = admin::ParseHttpAddress("http", options.http);
  return address ? admin::HttpServer::Check(*address) : address.error();
}

}  // namespace

Status CheckNodeOptions(const NodeOptions& options) {
  if (Status http = CheckHttp(options); !http.ok()) return http;
  const auto keys = ReadCellKeys(options);
  if (!keys) return keys.error();
  const Result<FlashPlaces> places = FindFlashPlaces(options, FindsFor::kCheck);
  if (!places) return places.error();
  if (Status quotas = CheckFlashQuotas(options, *places); !quotas.ok()) return quotas;
  if (Status memory = CheckMemoryDirectory(options); !memory.ok()) return memory;
  for (std::size_t i = 0; i < places->devices.size(); ++i) {
    if (!places->devices[i].absent.ok()) continue;  // the start does without it
    if (Status device = CheckDevice(*places, i); !device.ok()) return device;
  }
  if (Status cell = CheckCell(options, *keys); !cell.ok()) return cell;
  return options.socket.empty() ? Status() : server::Listener::Check(options.socket);
}

Status CheckMemoryDirectory(const NodeOptions& options) {
  Status fits = CheckFileSystem(options);
  return fits.ok() ? memory::ArenaFile::Check(ArenaOptionsOf(options)) : fits;
}

}  // namespace cistern::node

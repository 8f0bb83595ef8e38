"""Run by a test as an ordinary user: two nodes, one fault, and back."""

import asyncio

from chaoslab.cluster.namespaces import Server, start_cluster


async def main():
    server = Server(None)
    try:
        await server.wait_ready()
        async with start_cluster(
            server,
            run_id="ordinary",
            nodes=2,
            owner=None,
            on_exit=lambda _: None,
            on_agent_event=lambda *_: None,
        ) as cluster:
            said = []
            common = {"limit_s": 15, "fault_id": "f"}
            probe = {"timeout_s": 10, "probe_to": [cluster.addresses[1]]}
            wire = {"kind": "silent_drop", "direction": "both", "peers": [], "ports": []}
            await cluster.ask_agent(0, "inject", lease_s=60, fault=wire, **common)
            answer = await cluster.ask_agent(0, "wait_effective", **common, **probe)
            said += ["effective"] if answer["effective"] else [str(answer)]
            await cluster.ask_agent(0, "heal", **common)
            answer = await cluster.ask_agent(0, "wait_healed", **common, **probe)
            said += ["healed"] if answer["healed"] else [str(answer)]
            answer = await cluster.ask_agent(0, "pristine", limit_s=15)
            said += ["pristine"] if answer["pristine"] else [str(answer)]
            print(*said)
    finally:
        server.close()


asyncio.run(main())

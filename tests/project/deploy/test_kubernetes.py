"""The Kubernetes files fit together, and their probes, ports and metrics are those of this backend."""

import re
from pathlib import Path

import pytest
import yaml

from ge_backend.metrics import METRICS
from ge_tools import health
from ge_tools.main import main

ROOT = Path(__file__).resolve().parents[3]
OBJECTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/npu.yaml").read_text()))
RUNTIME = yaml.safe_load((ROOT / "deploy/kserve/runtime.yaml").read_text())

# A request's wait, at the model where it is longest: the host's queue, or the model's own. Members
# of ensembles, models that nobody asks, and steps of fused ensembles take nothing from it.
WAITED = """
max by (namespace, pod) (
  increase(nv_inference_queue_duration_us[1m]) / 1e6
    / clamp_min(increase(nv_inference_request_success[1m]), 1)
  or increase(ge_backlog_seconds_total[1m]) / clamp_min(increase(ge_requests_total[1m]), 1))
"""


def of_kind(kind):
    return [found for found in OBJECTS if found["kind"] == kind]


def containers():
    (deployment,) = of_kind("Deployment")
    return [
        deployment["spec"]["template"]["spec"]["containers"][0],
        RUNTIME["spec"]["containers"][0],
    ]


def test_the_pods_of_the_serving_runtime_are_pods():
    """What KServe would start is valid by Kubernetes' own schema."""
    validate = pytest.importorskip("kubernetes_validate").validate
    spec = {name: RUNTIME["spec"][name] for name in ("containers", "volumes")}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}, "1.31")


def test_the_serving_runtime_says_where_it_works():
    """Knative refuses containers with `lifecycle`, and a pod's own time to leave."""
    assert "lifecycle" in RUNTIME["spec"]["containers"][0]
    head = (ROOT / "deploy/kserve/runtime.yaml").read_text().partition("apiVersion")[0]
    mode = "serving.kserve.io/deploymentMode: RawDeployment"
    assert mode in head
    assert mode in (ROOT / "docs/scale.md").read_text()
    assert "terminationGracePeriodSeconds: 90" in head


def test_everything_is_about_the_same_pods():
    """Both services, the budget and the autoscaler; one service has an address per pod."""
    (deployment,) = of_kind("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert [service["spec"]["selector"] for service in of_kind("Service")] == [labels, labels]
    assert [service["spec"].get("clusterIP") for service in of_kind("Service")] == [None, "None"]
    (budget,) = of_kind("PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"] == labels
    (scaler,) = of_kind("HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


@pytest.mark.parametrize("figure", [WAITED, "sum by (namespace, pod) (ge_text_waiting)"])
@pytest.mark.parametrize("file", ["deploy/kubernetes/npu.yaml", "docs/scale.md"])
def test_the_autoscaler_looks_at_what_there_is(file, figure):
    """One figure for each pod; `test_scheduling.py` holds it against requests that wait."""
    text = re.sub(r"[\s#]+", " ", (ROOT / file).read_text())
    assert re.sub(r"\s+", " ", figure).strip() in text
    names = set(re.findall(r"\b(?:ge|nv)_\w+", figure))
    assert names - METRICS.keys() <= {
        "nv_inference_queue_duration_us",
        "nv_inference_request_success",
    }


@pytest.mark.parametrize("container", containers(), ids=["deployment", "runtime"])
def test_the_probes_ask_what_there_is(container, capsys):
    """Alive is our own command, ready and started are the server's endpoints."""
    command = container["livenessProbe"]["exec"]["command"]
    assert command[:2] == ["ge-backend", "health"]
    assert container["livenessProbe"]["timeoutSeconds"] >= 2 * health.ANSWER_S  # why it fails
    with pytest.raises(SystemExit):
        main([*command[1:], "--help"])
    assert "usage: ge-backend health" in capsys.readouterr().out
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container["startupProbe"]["httpGet"]["path"] == "/v2/health/live"


@pytest.mark.parametrize("container", containers(), ids=["deployment", "runtime"])
def test_one_model_that_heals_does_not_take_the_pod_away(container):
    """The whole server's readiness is asked for, so it must not be that of its least ready model."""
    assert " ".join(container["args"]).rstrip().endswith("-- --strict-readiness=false")


def test_a_pod_has_the_time_to_leave():
    """It waits until nobody sends any more, then for what is under way, then it unloads."""
    (deployment,) = of_kind("Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:2] == ["--host=0.0.0.0", "--exit-timeout=30"]
    waits = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits + 30 + 30
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0

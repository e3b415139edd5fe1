// Browsers start no worker for pages from file://. On those pages, run the search in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      const post = inner.postMessage.bind(inner);
      const loaded = new Promise(resolve => frame.addEventListener("load", resolve));
      this.postMessage = data => loaded.then(() => post(data, "*"));
      addEventListener("message", ({ source, data }) => {
        if (source === inner) this.dispatchEvent(new MessageEvent("message", { data }));
      });
      inner.document.write(
        `<script>postMessage = data => parent.postMessage(data, "*")</script><script src="${url}"></script>`);
      inner.document.close();
    }
    terminate() {}
  };
}
